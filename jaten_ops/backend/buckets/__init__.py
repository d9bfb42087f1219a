"""The option `buckets`: one executable for many sizes, and the proof that its padding changes no result."""
