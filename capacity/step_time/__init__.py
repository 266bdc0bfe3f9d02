"""How long a forward pass takes: its operations, each with its own roofline, and what an engine adds to them."""
