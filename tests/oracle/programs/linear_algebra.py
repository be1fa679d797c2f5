"""Linear algebra as users call it: decompositions and what is built of them, split over ranks."""

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.oracle.declare import Floats, Job, mesh, normal, program

BATCH = P("dp")


def adjoint(x: jax.Array) -> jax.Array:
    return jnp.conj(jnp.swapaxes(x, -1, -2))


@program("f32")
def solves_and_determinants(floats: Floats) -> Job:
    def function(a, b):
        a = a + 4 * jnp.eye(5)
        definite = a @ adjoint(a)
        return (
            jnp.linalg.solve(a, b),
            jnp.linalg.inv(a),
            jnp.linalg.det(a),
            jnp.linalg.slogdet(definite),
            jax.vmap(lambda one, right: jsl.cho_solve(jsl.cho_factor(one), right))(definite, b),
            jax.vmap(lambda one, right: jsl.lu_solve(jsl.lu_factor(one), right))(a, b),
            jnp.linalg.matrix_power(a, -2),
            lax.linalg.tridiagonal_solve(a[..., 0], a[..., 1] + 9, a[..., 2], b),
        )

    return Job(function, (normal(0, 8, 5, 5), normal(1, 8, 5, 2)), (BATCH, BATCH), mesh(dp=8))


@program("f32")
def singular_values(floats: Floats) -> Job:
    def function(x):
        left, values, right = jnp.linalg.svd(x, full_matrices=False)
        whole = jnp.linalg.svd(x, full_matrices=True)
        return (
            (left * values[..., None, :]) @ right,
            adjoint(whole[0]) @ whole[0],
            whole[2] @ adjoint(whole[2]),
            jnp.linalg.pinv(x),
            jnp.linalg.matrix_rank(x),
            jnp.linalg.norm(x, 2, axis=(-2, -1)),
            jnp.linalg.norm(x, "nuc", axis=(-2, -1)),
            jnp.linalg.cond(x),
            jax.vmap(lambda one: jnp.linalg.lstsq(one, one[:, 0])[0])(x),
        )

    return Job(function, (normal(2, 8, 6, 4),), (BATCH,), mesh(dp=8))


@program("f32")
def eigenvalues(floats: Floats) -> Job:
    def function(x):
        hermitian = x + adjoint(x)
        values, vectors = jnp.linalg.eigh(hermitian)
        others, columns = jnp.linalg.eig(x)
        order = jnp.argsort(others.real * 100 + others.imag, axis=-1)
        return (
            values,
            (vectors * values[..., None, :]) @ adjoint(vectors),
            jnp.linalg.eigvalsh(hermitian),
            jnp.take_along_axis(others, order, axis=-1),
            jnp.abs(x @ columns - columns * others[..., None, :]) < 1e-3,
            jax.vmap(lambda one: jsl.eigh_tridiagonal(one[0], one[1, :-1], eigvals_only=True))(x),
        )

    return Job(function, (normal(3, 8, 5, 5),), (BATCH,), mesh(dp=8))


@program("f32")
def factors(floats: Floats) -> Job:
    def function(x):
        square = x[:, :4]
        lower = jnp.linalg.cholesky(square @ adjoint(square) + jnp.eye(4))
        thin = jnp.linalg.qr(x)
        whole = jnp.linalg.qr(x, mode="complete")
        form, vectors = jax.vmap(jsl.schur)(square)
        reduced, turn = jax.vmap(lambda one: jsl.hessenberg(one, calc_q=True))(square)
        return (
            lower,
            thin,
            whole[0] @ whole[1],
            jax.vmap(jsl.lu)(x),
            jax.vmap(lambda one: jsl.qr(one, pivoting=True)[1:])(x),
            vectors @ form @ adjoint(vectors),
            (reduced, turn),
            lax.linalg.tridiagonal(square + adjoint(square)),
        )

    return Job(function, (normal(4, 8, 6, 4),), (BATCH,), mesh(dp=8))


@program("f32")
def functions_of_matrices(floats: Floats) -> Job:
    def function(x):
        definite = x @ adjoint(x) + jnp.eye(4)

        def loss(one):
            return jnp.linalg.slogdet(one @ adjoint(one) + jnp.eye(4))[1].sum()

        return (
            jax.vmap(jsl.expm)(x / 4),
            jax.vmap(jsl.sqrtm)(definite).real,
            jax.vmap(lambda one: jsl.polar(one)[1])(definite),
            jax.grad(loss)(x),
            jax.grad(lambda one: jnp.linalg.svd(one, compute_uv=False).sum())(x),
            jax.grad(lambda one: jnp.linalg.eigh(one @ adjoint(one))[0][..., 0].sum())(x),
        )

    return Job(function, (normal(5, 8, 4, 4),), (BATCH,), mesh(dp=8))


@program("f32")
def power_iterations_in_loops(floats: Floats) -> Job:
    """A subspace iteration: products summed over ranks, orthogonalised in every step."""

    def function(rows, start):
        def step(basis, _):
            basis = jnp.linalg.qr(rows.T @ (rows @ basis))[0]
            return basis, jnp.linalg.norm(rows @ basis)

        basis, norms = lax.scan(step, start, None, length=5)

        def shrink(state):
            matrix, count = state
            return jnp.linalg.inv(matrix) * 0.5 + matrix * 0.5, count + 1

        gram = basis.T @ (rows.T @ (rows @ basis)) / 64 + jnp.eye(3)
        nearest, count = lax.while_loop(
            lambda state: (jnp.abs(jnp.linalg.det(state[0])) > 1.001) & (state[1] < 20),
            shrink,
            (gram, 0),
        )
        return basis @ basis.T, norms, nearest, count

    return Job(function, (normal(6, 64, 6), normal(7, 6, 3)), (BATCH, P()), mesh(dp=8))
