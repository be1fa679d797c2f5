/* A ring all-reduce, reduce-scatter and all-gather, for SimGrid's SMPI: messages only, no values.
 * Prints the simulated seconds. Compiled and run by simulators.py. Argument: bytes of the buffer. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int chunk = (int)(atol(argv[1]) / ranks);
  char *sent = SMPI_SHARED_MALLOC(chunk), *received = SMPI_SHARED_MALLOC(chunk);
  int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  double start = MPI_Wtime();
  for (int step = 0; step < 2 * (ranks - 1); step++)
    MPI_Sendrecv(sent, chunk, MPI_BYTE, next, 0, received, chunk, MPI_BYTE, previous, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  double mine = MPI_Wtime() - start, longest = 0;
  MPI_Reduce(&mine, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0)
    printf("simulated %.9f\n", longest);
  MPI_Finalize();
  return 0;
}
