"""Engines decide which scenario runs next; all of them are interchangeable behind `base.Engine`."""
