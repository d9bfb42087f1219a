"""An account of what a compiled function becomes: executables, with operators, times and memory, and its parts."""

from __future__ import annotations

import html
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .step.compiled import Step
from .xla import compiles
from .xla.compiles import Compile, Outside


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compiles a function anew, and says what it becomes.

    A function of `torch.compile` is called once. If results require a gradient, that of all parameters and arguments is
    computed, for the backward graphs; no `.grad` changes. Whatever else was compiled by `torch.compile` in this process
    is compiled again at its next call. A step of `compile_step` is not called.

    Args:
        fn: what `torch.compile` or `compile_step` returned, or a function or module, which is then compiled by
            `torch.compile(fn, backend="jaten")`.
        args, kwargs: those of a call, tensors of any shape and dtype and anything else that `fn` takes.

    Returns:
        An `Explanation`: print it, or write its page by `save`.

    Raises:
        RuntimeError: a step with an optimizer that has no state yet. Call the step once before.

    Example:
        >>> model = torch.compile(torch.nn.Linear(4, 2), backend="jaten")
        >>> explanation = jaten_ops.explain(model, torch.ones(3, 4))
        >>> [each.operators["addmm"] for each in explanation.compiled]
        [1, 0]

    Source: `torch._dynamo.explain`, which says the same of Dynamo's graphs.
    """
    if isinstance(fn, Step):
        return _of_step(fn, args, kwargs)
    torch.compiler.reset()
    is_compiled = isinstance(fn, torch._dynamo.OptimizedModule) or hasattr(fn, "_torchdynamo_orig_callable")
    call = fn if is_compiled else torch.compile(fn, backend="jaten")
    counters = torch._dynamo.utils.counters  # not imported above: `import jaten_ops` does not take Dynamo's time
    before = Counter(counters["graph_break"])
    with compiles.noted() as found:
        _differentiate(call(*args, **kwargs))
    breaks = Counter(counters["graph_break"]) - before
    return Explanation(
        tuple(c for c in found if isinstance(c, Compile)),
        tuple(c for c in found if isinstance(c, Outside)),
        tuple(reason for reason, count in breaks.items() for _ in range(count)),
    )


@dataclass(frozen=True)
class Explanation:
    """The findings of `explain`.

    Attributes:
        compiled: the executables, in the order in which they were made.
        outside: operators that run one by one between two executables of one graph.
        graph_breaks: the reason of each place where Dynamo parted the function.

    Example:
        >>> explanation = jaten_ops.explain(lambda x: x.sin().sum(), torch.ones(3))
        >>> print(str(explanation).splitlines()[0])
        1 executable in ... s, 0 graph breaks
    """

    compiled: tuple[Compile, ...]
    outside: tuple[Outside, ...]
    graph_breaks: tuple[str, ...]

    def __str__(self) -> str:
        seconds = sum(c.seconds for c in self.compiled)
        head = f"{_number(self.compiled, 'executable')} in {seconds:.2f} s, {_number(self.graph_breaks, 'graph break')}"
        return "\n".join([head, *(f"{title}\n    " + "\n    ".join(lines) for title, lines, _ in self._sections())])

    def _sections(self) -> Iterator[tuple[str, list[str], Any]]:
        """A title and lines for each executable, which is the third, and for each place where the function is parted.

        A graph may have several executables.
        """
        for each in self.compiled:
            lines = [f"compiled in {each.seconds:.2f} s", *_memory(each.executable)]
            lines += [f"inputs: {', '.join(each.inputs)}"] if each.inputs else []
            yield each.name + each.source, [*lines, *_counted(each.operators)], each.executable
        for part in self.outside:
            yield f"{part.name}: between executables, one by one", _counted(part.operators), None
        for reason in self.graph_breaks:
            yield "graph break", [line.strip() for line in reason.splitlines() if line.strip()], None

    def save(self, file: str | Path) -> None:
        """Writes it as one page of HTML, with the program of each executable, whose operations name their modules.

        Raises:
            OSError: the file cannot be written.
        """
        parts = [f"<h1>{html.escape(str(self).partition(chr(10))[0])}</h1>"]
        for title, lines, executable in self._sections():
            facts = "\n".join(f"<li>{html.escape(line)}</li>" for line in lines)
            parts.append(f"<section><h2>{html.escape(title)}</h2>\n<ul>\n{facts}\n</ul>")
            if executable is not None:
                program = html.escape(_text(executable))
                parts.append(f"<details><summary>program</summary><pre>{program}</pre></details>")
            parts.append("</section>")
        path = Path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_PAGE.format(body="\n".join(parts)), encoding="utf-8")


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What is compiled</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font-family: system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; line-height: 1.4; }}
h1 {{ font-size: 1.4rem; }}
h2 {{ font-size: 1rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }}
section {{ border: 1px solid #8886; border-radius: .5rem; padding: 1rem; margin: 1rem 0; }}
ul {{ list-style: none; margin: 0; padding: 0; font: .85rem/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }}
li {{ padding-left: 2ch; text-indent: -2ch; }}
pre {{ font-size: .8rem; margin: .5rem 0 0; max-height: 70vh; overflow: auto; }}
summary {{ cursor: pointer; margin-top: .75rem; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def _of_step(step: Step, args: Any, kwargs: Any) -> Explanation:
    start = time.monotonic()
    executable = step.executable_for(*args, **kwargs)
    inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    described = tuple(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in inputs)
    found = Compile(f"step {step.name}", "", Counter(), described, time.monotonic() - start, executable)
    return Explanation((found,), (), ())


def _differentiate(results: Any) -> None:
    """Computes the gradient of all leaves that results depend on, and drops it."""
    outputs = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves: dict[int, torch.Tensor] = {}
    pending, seen = [x.grad_fn for x in outputs], set()
    while pending:
        node: Any = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves[id(node.variable)] = node.variable
        pending += [following for following, _ in node.next_functions]
    if leaves:
        ones = [torch.ones_like(x) for x in outputs]
        torch.autograd.grad(outputs, list(leaves.values()), ones, allow_unused=True)


def _number(of: tuple[Any, ...], what: str) -> str:
    return f"{len(of)} {what}{'s' * (len(of) != 1)}"


def _counted(operators: Counter[str]) -> list[str]:
    each = [name if count == 1 else f"{name} x {count}" for name, count in operators.most_common()]
    return [f"operators: {', '.join(each)}"] if each else []


def _memory(executable: Any) -> list[str]:
    """A line about an executable's memory, if XLA tells."""
    analysis = executable.memory_analysis()
    if analysis is None:
        return []
    parts = {
        "inputs": analysis.argument_size_in_bytes,
        "results": analysis.output_size_in_bytes,
        "temporaries": analysis.temp_size_in_bytes,
        "code": analysis.generated_code_size_in_bytes,
    }
    return ["bytes: " + ", ".join(f"{name} {size:,}" for name, size in parts.items() if size)]


_FRAMES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


def _text(executable: Any) -> str:
    """An executable's program, without the tables of Python's frames: an operation has the names of its modules."""
    blocks = str(executable.as_text()).split("\n\n")
    return re.sub(r" stack_frame_id=\d+", "", "\n\n".join(b for b in blocks if not b.startswith(_FRAMES)))
