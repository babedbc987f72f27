"""Many executions: generating, mutating, shrinking and reporting scenarios."""
