"""What a launcher of MPI says of this process: every command looks, and imports nothing large."""

import os


def launched() -> tuple[int, int]:
    """The number of this process, and how many were started with it."""
    for number, count in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI's mpirun
        ("PMI_RANK", "PMI_SIZE"),  # MPICH's and Intel's, and srun --mpi=pmi2
        ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),  # srun --mpi=pmix
    ):
        words = os.environ.get(number, ""), os.environ.get(count, "")
        if all(word.isdecimal() for word in words):
            return int(words[0]), int(words[1])
    return 0, 1
