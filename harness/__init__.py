"""One execution: a scenario goes in, vLLM's own scheduler runs it against a worker that knows the truth."""
