"""Scripted things around a scheduler, behind vLLM's own interfaces."""
