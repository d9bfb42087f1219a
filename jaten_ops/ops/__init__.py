"""One operator: its definition in torch, its call, and its in-place and out= forms."""
