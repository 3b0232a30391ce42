"""How a model is evaluated fast: CUDA graphs, Triton kernels, folding, compilation, precision, memory."""
