"""Models as data: weight tensors and, layer by layer, what a sequence keeps in the cache."""
