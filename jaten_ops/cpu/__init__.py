"""CPU lowerings: the forms of convolutions, products and elementary functions that XLA's CPU compiler runs fastest."""
