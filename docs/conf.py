"""Settings of Sphinx, with which `make docs` builds the site."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for the extensions in tools/

project = "jaten"
html_show_copyright = False
extensions = [
    "myst_parser",  # pages are Markdown
    "sphinx.ext.autodoc",  # the reference is made of docstrings
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "tools.source_pages",
    "tools.reference_docstrings",
    "tools.house_matrix",
]
html_theme = "furo"
pygments_dark_style = "github-dark"  # furo's own underlines names of modules
html_title = "jaten"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["filter.js"]
copybutton_prompt_text = r">>> |\.\.\. "  # of the examples in docstrings: it is not copied
copybutton_prompt_is_regexp = True
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 3

default_role = "py:obj"  # names in docstrings are links where there is something to link to
autodoc_typehints = "none"  # signatures stay short; the docstrings say shapes and dtypes
autodoc_member_order = "bysource"
napoleon_use_rtype = False
napoleon_use_ivar = True
