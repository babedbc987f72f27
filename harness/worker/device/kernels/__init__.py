"""Stand-ins for the Triton kernels that a greedy step launches, for CPUs without compiled kernels.

vLLM's Triton kernels do not run on a plain CPU; its CPU build replaces some of them by compiled functions, and a
tree of Python sources has neither. Each stand-in (`v1`, `v2_batch`, `v2_sampling`) does on tensors what the kernel
of that name does, in the kernel's own parameter names (without `_ptr`); `grid` is how it was launched, and what one
release has and another lacks is read with `get`. `launch` puts them where vLLM looks for the kernels. The tests
compare them with the kernels themselves, run by Triton's interpreter.
"""
