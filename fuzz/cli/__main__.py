"""python -m fuzz.cli"""

from fuzz.cli import main

main()
