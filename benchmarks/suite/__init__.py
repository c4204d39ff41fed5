"""Eight workloads on real data, in the spirit of AlgoPerf at the size of two cores.

    python -m benchmarks.suite data     # fetch the data
    python -m benchmarks.suite tune     # tune the rivals, one seed
    python -m benchmarks.suite run      # the best setting of each method on all seeds
    python -m benchmarks.suite cost     # what a step costs, in gradients
    python -m benchmarks.suite report   # tables and figures

Runs are counted in steps, and the cost of a step is measured apart, so the hour of the day does not
matter. A run that has ended is at once a line of ``benchmarks/results/suite/<workload>.jsonl``, and
is not run again when the command is.
"""

import os

# Threads of LAPACK that wait for each other take seconds where the machine is busy. This must come
# before JAX loads it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
