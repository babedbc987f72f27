#!/usr/bin/env bash
# Two supported releases, others with each commit: what `make test` tests beside those that it always does.
# usage: rotating_releases.sh RELEASE...
set -euo pipefail
count=$(git rev-list --count HEAD 2>/dev/null || echo 0)
releases=("$@")
echo "${releases[$((2 * count % ${#releases[@]}))]} ${releases[$(((2 * count + 1) % ${#releases[@]}))]}"
