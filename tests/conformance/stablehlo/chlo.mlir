// case: mulhi
// input: [2147483647, -2147483648, -1]
// input: [2, 2, 1]
// output: [0, -1, -1]
func.func @main(%a: tensor<3xi32>, %b: tensor<3xi32>) -> tensor<3xi32> {
  %r0 = chlo.mulhi %a, %b : tensor<3xi32>, tensor<3xi32> -> tensor<3xi32>
  return %r0 : tensor<3xi32>
}
// -----
// case: ragged_dot: groups of rows have a matrix each
// input: [[1, 2], [3, 4], [5, 6], [7, 8]]
// input: [[[1], [10]], [[100], [1000]]]
// input: [1, 3]
// output: [[21], [4300], [6500], [8700]]
func.func @main(%x: tensor<4x2xf32>, %w: tensor<2x2x1xf32>, %g: tensor<2xi32>) -> tensor<4x1xf32> {
  %r0 = "chlo.ragged_dot"(%x, %w, %g) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [], rhs_batching_dimensions = [], lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<4x2xf32>, tensor<2x2x1xf32>, tensor<2xi32>) -> tensor<4x1xf32>
  return %r0 : tensor<4x1xf32>
}
// -----
// case: erf, top_k and friends
// input: [0.5, -1]
// input: [1, 5, 3]
// output: [0.5204998778130465, -0.8427007929497149]
// output: [5, 3]
// output: [1, 2]
// near: 1e-12
func.func @main(%a: tensor<2xf64>, %b: tensor<3xf32>) -> (tensor<2xf64>, tensor<2xf32>, tensor<2xi32>) {
  %r0 = chlo.erf %a : tensor<2xf64> -> tensor<2xf64>
  %r1, %r2 = chlo.top_k(%b, k = 2) : tensor<3xf32> -> (tensor<2xf32>, tensor<2xi32>)
  return %r0, %r1, %r2 : tensor<2xf64>, tensor<2xf32>, tensor<2xi32>
}
