"""Lines of ops with windows and of numerical methods: right ones, and each rule broken."""

from tests.compiler.reading import SUM

PREAMBLE = (
    SUM
    + """ge {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=GE
}
larger {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  c = f32[] maximum(a, b)
  d = s32[] maximum(i, j)
  ROOT e = (f32[], s32[]) tuple(c, d)
}
x = f32[2,3] parameter(0)
y = f32[3,4] parameter(1)
p = pred[3,2] parameter(2)
s = f32[] parameter(3)
c = c64[2] parameter(4)
i = s32[2,3] parameter(5)
m = f32[1,8,8,4] parameter(6)
f = f32[3,3,4,6] parameter(7)
q = f32[3,3] parameter(8)
u = u64[2] parameter(9)
k = s32[] parameter(10)
h = bf16[4,3] parameter(11)
w = u64[3] parameter(12)
a = s32[3,3] parameter(13)
v = f32[3] parameter(14)
"""
)
LINE = PREAMBLE.count("\n") + 1

_C = "dim_labels=b01f_01io->b01f"
_W = "window={size=3x3}"
_D = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"

RIGHT_WINDOWS = (
    f"f32[1,6,6,6] convolution(m, f), {_W}, {_C}",
    f"f32[1,4,4,6] convolution(m, f), window={{size=3x3 stride=2x2 pad=1_1x1_1}}, {_C}",
    f"f32[1,0,6,6] convolution(m, f), window={{size=3x3 pad=-6_0x0_0}}, {_C}",
    f"f64[1,15,2,6] convolution(m, f), window={{size=3x3 pad=1_1x-1_1 lhs_dilate=2x1 "
    f"rhs_dilate=1x3 rhs_reversal=1x1}}, {_C}",
    "f32[6,6,1,6] convolution(m, f), window={size=3x3}, dim_labels=b01f_01io->f0b1",
    "f32[2,4] convolution(x, y), dim_labels=bf_io->bf",
    "f32[1,6,3,1] convolution(m, m), window={size=8x8 pad=2_3x1_1}, dim_labels=b01f_o01i->b01f",
    "f32[2,4] convolution(x, h), dim_labels=bf_oi->bf",
    "f32[2,2] convolution(x, i), dim_labels=bf_oi->bf",
    f"f32[1,6,2,6] convolution(m, f), {_W}, dim_labels=b0f1_10io->b01f, feature_group_count=2",
    "f32[1,2] convolution(x, x), dim_labels=bf_oi->bf, batch_group_count=2",
    "f32[1,3] reduce-window(x, s), window={size=2x1}, to_apply=sum",
    "f32[0,4] reduce-window(x, s), window={size=3x2 pad=0_0x1_1}, to_apply=sum",
    "f32[] reduce-window(s, s), to_apply=sum",
    "(f32[1,3], s32[1,3]) reduce-window(x, i, s, k), window={size=2x1}, to_apply=larger",
    "f32[2,3] select-and-scatter(x, x, s), window={size=1x1}, select=ge, scatter=sum",
    "f32[3,4] select-and-scatter(y, x, s), window={size=2x2}, select=ge, scatter=sum",
    "c64[2] fft(c), fft_type=IFFT, fft_length={2}",
    "c64[2,2] fft(x), fft_type=RFFT, fft_length={2,3}",
    "c64[1,8,8,3] fft(m), fft_type=RFFT, fft_length={8,8,4}",
    "f32[3] fft(c), fft_type=IRFFT, fft_length={3}",
    "(f32[2,3], f32[3], f32[3]) batch-norm-training(x, v, v), epsilon=0.1, feature_index=1",
    "(f32[3,4], bf16[3], f64[3]) batch-norm-training(y, v, v), epsilon=1e-05, feature_index=0",
    "bf16[2,3] batch-norm-inference(x, v, v, v, v), epsilon=0, feature_index=1",
    "(f32[2,3], f32[3], f32[3]) batch-norm-grad(x, v, v, v, x), epsilon=-1.5, feature_index=1",
    "f32[5,2] rng(s, s), distribution=rng_normal",
    "s32[] rng(k, k), distribution=rng_uniform",
    "f32[3,3] cholesky(q), lower=true",
    "f32[3,4] triangular-solve(q, y), left_side=true, lower=true, unit_diagonal=true",
    "f32[2,3] triangular-solve(q, x), transpose_a=ADJOINT",
    "(u64[2], u8[3,0]) rng-bit-generator(u), algorithm=rng_three_fry",
    "(u64[3], s64[7]) rng-bit-generator(w), algorithm=rng_default",
    "pred[3,3] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
    f"f32[2,4] dot(x, y), {_D}, algorithm=dot_bf16_bf16_f32, operand_precision={{high,high}}",
    "f32[2,2] dot(i, i), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
    "f32[2,2] dot(x, i), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
)

WRONG_WINDOWS = [
    (f"f32[2,4] dot(x, y), {_D}, sparsity=L.1@2:4", "dot-C6", 10),
    (f"f32[2,4] dot(x, y, i), {_D}", "dot-C6", 20),
    (
        f"f32[1,8,8,6] convolution(m, x), window={{size=3x3 pad=1_1x1_1}}, {_C}",
        "convolution-C1",
        29,
    ),
    (
        f"f32[1,8,8,6] convolution(m, f), window={{size=3x2 pad=1_1x1_1}}, {_C}",
        "convolution-C2",
        33,
    ),
    (f"f32[1,8,8,6] convolution(m, f), {_C}", "convolution-C2", 29),
    (f"f32[1,8,8,6] convolution(m, f), window={{size=3x3 stride=0x1}}, {_C}", "convolution-C3", 33),
    (
        f"f32[1,6,6,6] convolution(m, f), {_W}, {_C}, feature_group_count=2, batch_group_count=2",
        "convolution-C4",
        103,
    ),
    (f"f32[1,6,6,6] convolution(m, f), {_W}, {_C}, feature_group_count=0", "convolution-C4", 80),
    (f"f32[1,6,6,6] convolution(m, f), {_W}, {_C}, feature_group_count=2", "convolution-C5", 29),
    (
        "f32[1,3,2,3] convolution(m, f), window={size=6x3}, dim_labels=b0f1_o1i0->b01f, "
        "feature_group_count=2",
        "convolution-C6",
        29,
    ),
    (f"f32[1,6,6,6] convolution(m, f), {_W}, {_C}, batch_group_count=3", "convolution-C7", 26),
    ("f32[4,2] convolution(y, p), dim_labels=fb_io->bf", "convolution-C8", 25),
    ("s32[4,2] convolution(y, i), dim_labels=fb_oi->bf", "convolution-C9", 1),
    ("f32[1,3] reduce-window(x, x, s), window={size=2x1}, to_apply=sum", "reduce-window-C1", 30),
    ("f32[1,3] reduce-window(x, y, s, s), window={size=2x1}, to_apply=sum", "reduce-window-C2", 27),
    ("f32[1,3] reduce-window(x, s), window={size=2}, to_apply=sum", "reduce-window-C3", 31),
    ("f32[1,3] reduce-window(x, s), window={size=2x0}, to_apply=sum", "reduce-window-C4", 31),
    (
        "f32[1,3] reduce-window(x, s), window={size=2x1 rhs_reversal=1x0}, to_apply=sum",
        "reduce-window-C5",
        31,
    ),
    ("f32[1,3] reduce-window(x, x), window={size=2x1}, to_apply=sum", "reduce-window-C6", 27),
    ("s32[1,3] reduce-window(i, k), window={size=2x1}, to_apply=sum", "reduce-window-C7", 50),
    (
        "f32[2,3] select-and-scatter(x, x, s), window={size=2}, select=ge, scatter=sum",
        "select-and-scatter-C1",
        39,
    ),
    (
        "f32[2,3] select-and-scatter(x, x, s), window={size=2x1 stride=1x-1}, select=ge, "
        "scatter=sum",
        "select-and-scatter-C2",
        39,
    ),
    (
        "f32[2,3] select-and-scatter(x, x, s), window={size=1x1 rhs_dilate=2x1}, "
        "select=ge, scatter=sum",
        "select-and-scatter-C3",
        39,
    ),
    (
        "f32[2,3] select-and-scatter(x, x, s), window={size=2x1}, select=ge, scatter=sum",
        "select-and-scatter-C4",
        32,
    ),
    (
        "f32[2,3] select-and-scatter(x, i, s), window={size=1x1}, select=ge, scatter=sum",
        "select-and-scatter-C5",
        32,
    ),
    (
        "f32[2,3] select-and-scatter(x, x, k), window={size=1x1}, select=ge, scatter=sum",
        "select-and-scatter-C5",
        35,
    ),
    (
        "f32[2,3] select-and-scatter(x, x, s), window={size=1x1}, select=sum, scatter=sum",
        "select-and-scatter-C6",
        58,
    ),
    (
        "f32[2,3] select-and-scatter(x, x, s), window={size=1x1}, select=ge, scatter=ge",
        "select-and-scatter-C7",
        69,
    ),
    ("c64[2] fft(c), fft_type=DCT, fft_length={2}", "fft-C1", 16),
    ("c64[2] fft(c), fft_type=FFT, fft_length={2,2}", "fft-C2", 30),
    ("f32[2,3] fft(x), fft_type=FFT, fft_length={3}", "fft-C3", 14),
    ("f32[2,3] fft(c), fft_type=RFFT, fft_length={2}", "fft-C3", 14),
    ("f32[3] fft(c), fft_type=IRFFT, fft_length={4}", "fft-C4", 32),
    (
        "f32[3,3] batch-norm-inference(a, v, v, v, v), epsilon=0, feature_index=1",
        "batch-norm-inference-C1",
        31,
    ),
    (
        "f32[2,3] batch-norm-inference(x, v, v, v, v), epsilon=0, feature_index=2",
        "batch-norm-inference-C2",
        58,
    ),
    (
        "f32[2,3] batch-norm-inference(x, v, s, v, v), epsilon=0, feature_index=1",
        "batch-norm-inference-C3",
        37,
    ),
    (
        "(f32[2,3], f32[3], f32[3]) batch-norm-training(i, v, v), epsilon=0, feature_index=1",
        "batch-norm-training-C1",
        48,
    ),
    (
        "(f32[2,3], f32[3], f32[3]) batch-norm-training(x, v, v), epsilon=0, feature_index=-1",
        "batch-norm-training-C2",
        69,
    ),
    (
        "(f32[2,3], f32[3], f32[3]) batch-norm-training(x, v, s), epsilon=0, feature_index=1",
        "batch-norm-training-C3",
        54,
    ),
    (
        "(f32[2,3], f32[3], f32[3]) batch-norm-grad(x, v, v, v, i), epsilon=0, feature_index=1",
        "batch-norm-grad-C1",
        56,
    ),
    (
        "(f32[2,3], f32[3], f32[3]) batch-norm-grad(x, v, v, v, x), epsilon=0, feature_index=3",
        "batch-norm-grad-C2",
        71,
    ),
    (
        "(f32[2,3], f32[3], f32[3]) batch-norm-grad(x, v, x, v, x), epsilon=0, feature_index=1",
        "batch-norm-grad-C3",
        50,
    ),
    (
        "(f32[2,3], f32[3], f32[3]) batch-norm-grad(x, v, v, v, y), epsilon=0, feature_index=1",
        "batch-norm-grad-C4",
        56,
    ),
    ("f32[2] rng(s, s), distribution=rng_dice", "rng-C1", 19),
    ("f32[2] rng(s, k), distribution=rng_normal", "rng-C2", 15),
    ("s32[2] rng(k, k), distribution=rng_normal", "rng-C3", 1),
    ("s32[3,3] cholesky(a)", "cholesky-C1", 19),
    ("f32[2,3] cholesky(x)", "cholesky-C2", 19),
    ("s32[2,3] triangular-solve(q, i), left_side=false", "triangular-solve-C1", 30),
    ("f32[2,3] triangular-solve(x, x)", "triangular-solve-C2", 27),
    ("f32[1,8,8,4] triangular-solve(q, m)", "triangular-solve-C3", 34),
    ("f32[2,3] triangular-solve(q, x), left_side=true", "triangular-solve-C4", 30),
    ("f32[2,3] triangular-solve(q, x), transpose_a=YES", "triangular-solve-C5", 34),
    ("(u64[2], u32[4]) rng-bit-generator(u), algorithm=rng_dice", "rng-bit-generator-C1", 40),
    ("(u64[2], u32[4]) rng-bit-generator(c), algorithm=rng_philox", "rng-bit-generator-C2", 36),
    ("(u64[2], f32[4]) rng-bit-generator(u), algorithm=rng_philox", "rng-bit-generator-C3", 1),
]
