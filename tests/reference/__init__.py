"""Independent float64 NumPy renderings that the library's tensors are checked against."""
