"""An experiment of one's own: layers and a name become a command with its CSV, like those that are here."""

import sys

from experiments.measuring import command, contestants, on_host, records


def main(name, summary, layers, arguments=None):
    """Measure layers by any algorithms, as the command line says.

    Parameters
    ----------
    name : str
        Of the module under ``experiments/`` and of the CSV, ``results/<gpu>/NAME.csv``.
    summary : str
        What ``--help`` says.
    layers : list of (str, numbacaps.Geometry)
        Workload and geometry; :func:`experiments.sweep.points` makes them of axes.
    arguments : list of str, optional
        The command line's arguments; by default those of the process.

    Returns
    -------
    int
        0; see :mod:`experiments.measuring.command` for the others.
    """
    parser = command.parser(name, summary, (*contestants.NAMES, *on_host.NAMES))
    parser.set_defaults(algorithms=contestants.NAMES)
    command.add_precisions(parser)
    options = parser.parse_args(arguments)
    on_gpu = [algorithm for algorithm in options.algorithms if algorithm in contestants.NAMES]
    if on_gpu and len(on_gpu) < len(options.algorithms):
        parser.error(
            f"--algorithms got {','.join(options.algorithms)}; it takes {', '.join(on_host.NAMES)}, which "
            "the host's clock times, or others, which the GPU's does"
        )
    if on_gpu:
        return command.main(name, parser, lambda *given: _groups(name, layers, *given), arguments)
    if options.gpus:
        parser.error(f"--gpus got {options.gpus!r}; what runs on the host takes none")
    if "ieee" not in options.precisions:
        parser.error(
            f"--precisions got {','.join(options.precisions)}; what runs on the host takes ieee"
        )
    try:
        path = on_host.run(name, layers, options)
    except KeyboardInterrupt:
        print("\ninterrupted; the CSV holds every finished group", file=sys.stderr)
        return 130
    except records.ForeignFile as foreign:
        print(f"{name}: {foreign}", file=sys.stderr)
        return 2
    print(f"{path}, times of the host")
    return 0


def _groups(name, layers, parser, options):
    names = command.chosen(options, [workload for workload, _ in layers])
    some = [(workload, geometry) for workload, geometry in layers if workload in names]
    variants = command.choose(parser, options)
    return command.convolution_groups(name, some, options.passes, variants)
