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
// -----
// case: the largest of many elements, which a TPU would approximate
// ranks: 1
// output: [[4999, 4998]]
// output: [[0, 1]]
module @m {
  func.func @first(%a: tensor<f32>, %b: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>) -> tensor<i1> {
    %0 = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    return %0 : tensor<i1>
  }
  func.func @main() -> (tensor<2xf32>, tensor<2xi32>) {
    %x = stablehlo.iota dim = 0 : tensor<5000xf32>
    %i = stablehlo.iota dim = 0 : tensor<5000xi32>
    %r = stablehlo.reverse %i, dims = [0] : tensor<5000xi32>
    %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %none = stablehlo.constant dense<-1> : tensor<i32>
    %0:2 = stablehlo.custom_call @ApproxTopK(%x, %r, %least, %none) {
      called_computations = [@first],
      mhlo.backend_config = {aggregate_to_topk = true, recall_target = 0.95 : f32, reduction_dim = 0 : i64, reduction_input_size_override = -1 : i64, top_k = 2 : i64}
    } : (tensor<5000xf32>, tensor<5000xi32>, tensor<f32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)
    return %0#0, %0#1 : tensor<2xf32>, tensor<2xi32>
  }
}
