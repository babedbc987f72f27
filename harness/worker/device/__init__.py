"""vLLM's own worker-side code behind the executor seam: model runner, drafter, sampler, input batch, encoder cache.

What is ours: a network that computes `harness.model`'s function exactly (`network`, `memory`), Python stand-ins for
compiled kernels that a target lacks (`kernels`), and the configuration (`config`). Importing this package imports
torch; its modules import vLLM when they are used, so `target.activate` comes first.
"""
