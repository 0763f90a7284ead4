"""`python -m proxy.simulator`: the simulated server alone."""

import argparse
import sys

from proxy.simulator import cli_options

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m proxy.simulator", description=__doc__)
    cli_options.add_arguments(parser)
    sys.exit(cli_options.run(parser.parse_args()))
