// case: reduce over one dimension
// input: [[1, 2, 3], [4, 5, 6]]
// input: 10
// output: [16, 25]
func.func @main(%a: tensor<2x3xi32>, %z: tensor<i32>) -> tensor<2xi32> {
  %r0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1] : (tensor<2x3xi32>, tensor<i32>) -> tensor<2xi32>
  return %r0 : tensor<2xi32>
}
// -----
// case: reduce of two operands: the largest and its place
// input: [1, 9, 9, 3]
// input: [0, 1, 2, 3]
// input: -Infinity
// input: -1
// output: 9
// output: 1
func.func @main(%a: tensor<4xf32>, %i: tensor<4xi32>, %z: tensor<f32>, %m: tensor<i32>) -> (tensor<f32>, tensor<i32>) {
  %r0, %r1 = stablehlo.reduce(%a init: %z), (%i init: %m) across dimensions = [0] : (tensor<4xf32>, tensor<4xi32>, tensor<f32>, tensor<i32>) -> (tensor<f32>, tensor<i32>)
   reducer(%x: tensor<f32>, %y: tensor<f32>) (%j: tensor<i32>, %k: tensor<i32>) {
    %p = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %v = stablehlo.select %p, %x, %y : tensor<i1>, tensor<f32>
    %w = stablehlo.select %p, %j, %k : tensor<i1>, tensor<i32>
    stablehlo.return %v, %w : tensor<f32>, tensor<i32>
  }
  return %r0, %r1 : tensor<f32>, tensor<i32>
}
// -----
// case: reduce_window with padding
// input: [1, 2, 3, 4]
// input: 0
// output: [1, 3, 6, 9]
func.func @main(%a: tensor<4xi32>, %z: tensor<i32>) -> tensor<4xi32> {
  %r0 = "stablehlo.reduce_window"(%a, %z) <{window_dimensions = array<i64: 3>, padding = dense<[[2, 0]]> : tensor<1x2xi64>}> ({
  ^bb0(%x: tensor<i32>, %y: tensor<i32>):
    %s = stablehlo.add %x, %y : tensor<i32>
    stablehlo.return %s : tensor<i32>
  }) : (tensor<4xi32>, tensor<i32>) -> tensor<4xi32>
  return %r0 : tensor<4xi32>
}
// -----
// case: reduce_window with strides and dilations
// input: [5, 1, 4, 2, 3]
// input: 0
// output: [5, 4]
func.func @main(%a: tensor<5xi32>, %z: tensor<i32>) -> tensor<2xi32> {
  %r0 = "stablehlo.reduce_window"(%a, %z) <{window_dimensions = array<i64: 2>, window_strides = array<i64: 2>, window_dilations = array<i64: 2>}> ({
  ^bb0(%x: tensor<i32>, %y: tensor<i32>):
    %s = stablehlo.maximum %x, %y : tensor<i32>
    stablehlo.return %s : tensor<i32>
  }) : (tensor<5xi32>, tensor<i32>) -> tensor<2xi32>
  return %r0 : tensor<2xi32>
}
// -----
// case: select_and_scatter
// input: [1, 3, 2, 0]
// input: [10, 20]
// input: 0
// output: [0, 10, 20, 0]
func.func @main(%a: tensor<4xf32>, %s: tensor<2xf32>, %z: tensor<f32>) -> tensor<4xf32> {
  %r0 = "stablehlo.select_and_scatter"(%a, %s, %z) <{window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %p = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }, {
  ^bb0(%v: tensor<f32>, %w: tensor<f32>):
    %t = stablehlo.add %v, %w : tensor<f32>
    stablehlo.return %t : tensor<f32>
  }) : (tensor<4xf32>, tensor<2xf32>, tensor<f32>) -> tensor<4xf32>
  return %r0 : tensor<4xf32>
}
// -----
// case: dot_general with a batch
// input: [[[1, 2]], [[3, 4]]]
// input: [[[5], [6]], [[7], [8]]]
// output: [[[17]], [[53]]]
func.func @main(%a: tensor<2x1x2xf32>, %b: tensor<2x2x1xf32>) -> tensor<2x1x1xf32> {
  %r0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<2x1x2xf32>, tensor<2x2x1xf32>) -> tensor<2x1x1xf32>
  return %r0 : tensor<2x1x1xf32>
}
// -----
// case: convolution of three with padding
// input: [[[1], [2], [3], [4]]]
// input: [[[1]], [[10]], [[100]]]
// output: [[[210], [321], [432], [43]]]
func.func @main(%a: tensor<1x4x1xf32>, %k: tensor<3x1x1xf32>) -> tensor<1x4x1xf32> {
  %r0 = stablehlo.convolution(%a, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x4x1xf32>, tensor<3x1x1xf32>) -> tensor<1x4x1xf32>
  return %r0 : tensor<1x4x1xf32>
}
// -----
// case: fft of four
// input: [[1, 0], [2, 0], [3, 0], [4, 0]]
// output: [[10, 0], [-2, 2], [-2, 0], [-2, -2]]
// near: 1e-06
func.func @main(%a: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {
  %r0 = stablehlo.fft %a, type = FFT, length = [4] : (tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
  return %r0 : tensor<4xcomplex<f32>>
}
// -----
// case: triangular_solve and cholesky
// input: [[4, 2], [2, 5]]
// input: [[2], [5]]
// output: [[2, 0], [1, 2]]
// output: [[1], [2]]
// near: 1e-12
func.func @main(%a: tensor<2x2xf64>, %b: tensor<2x1xf64>) -> (tensor<2x2xf64>, tensor<2x1xf64>) {
  %r0 = stablehlo.cholesky %a, lower = true : tensor<2x2xf64>
  %r1 = "stablehlo.triangular_solve"(%r0, %b) <{left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>}> : (tensor<2x2xf64>, tensor<2x1xf64>) -> tensor<2x1xf64>
  return %r0, %r1 : tensor<2x2xf64>, tensor<2x1xf64>
}
