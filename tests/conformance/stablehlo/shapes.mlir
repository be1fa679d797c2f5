// case: broadcast_in_dim stretches dimensions of size one
// input: [[1, 2]]
// output: [[[1, 2], [1, 2], [1, 2]], [[1, 2], [1, 2], [1, 2]]]
func.func @main(%a: tensor<1x2xi32>) -> tensor<2x3x2xi32> {
  %r0 = stablehlo.broadcast_in_dim %a, dims = [1, 2] : (tensor<1x2xi32>) -> tensor<2x3x2xi32>
  return %r0 : tensor<2x3x2xi32>
}
// -----
// case: transpose
// input: [[1, 2, 3], [4, 5, 6]]
// output: [[1, 4], [2, 5], [3, 6]]
func.func @main(%a: tensor<2x3xi32>) -> tensor<3x2xi32> {
  %r0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xi32>) -> tensor<3x2xi32>
  return %r0 : tensor<3x2xi32>
}
// -----
// case: reverse, concatenate and slice with a stride
// input: [1, 2, 3, 4]
// input: [5, 6]
// output: [4, 3, 2, 1]
// output: [1, 2, 3, 4, 5, 6]
// output: [2, 4]
func.func @main(%a: tensor<4xi32>, %b: tensor<2xi32>) -> (tensor<4xi32>, tensor<6xi32>, tensor<2xi32>) {
  %r0 = stablehlo.reverse %a, dims = [0] : tensor<4xi32>
  %r1 = stablehlo.concatenate %a, %b, dim = 0 : (tensor<4xi32>, tensor<2xi32>) -> tensor<6xi32>
  %r2 = stablehlo.slice %a [1:4:2] : (tensor<4xi32>) -> tensor<2xi32>
  return %r0, %r1, %r2 : tensor<4xi32>, tensor<6xi32>, tensor<2xi32>
}
// -----
// case: pad between, outside and negative
// input: [1, 2, 3]
// input: 9
// output: [9, 1, 9, 2, 9, 3]
// output: [2, 3]
func.func @main(%a: tensor<3xi32>, %p: tensor<i32>) -> (tensor<6xi32>, tensor<2xi32>) {
  %r0 = stablehlo.pad %a, %p, low = [1], high = [0], interior = [1] : (tensor<3xi32>, tensor<i32>) -> tensor<6xi32>
  %r1 = stablehlo.pad %a, %p, low = [-1], high = [0], interior = [0] : (tensor<3xi32>, tensor<i32>) -> tensor<2xi32>
  return %r0, %r1 : tensor<6xi32>, tensor<2xi32>
}
// -----
// case: dynamic_slice and dynamic_update_slice keep inside
// input: [1, 2, 3, 4]
// input: [8, 9]
// input: 7
// output: [3, 4]
// output: [1, 2, 8, 9]
func.func @main(%a: tensor<4xi32>, %b: tensor<2xi32>, %i: tensor<i32>) -> (tensor<2xi32>, tensor<4xi32>) {
  %r0 = stablehlo.dynamic_slice %a, %i, sizes = [2] : (tensor<4xi32>, tensor<i32>) -> tensor<2xi32>
  %r1 = stablehlo.dynamic_update_slice %a, %b, %i : (tensor<4xi32>, tensor<2xi32>, tensor<i32>) -> tensor<4xi32>
  return %r0, %r1 : tensor<2xi32>, tensor<4xi32>
}
// -----
// case: iota along the second dimension
// output: [[0, 1, 2], [0, 1, 2]]
func.func @main() -> tensor<2x3xi32> {
  %r0 = stablehlo.iota dim = 1 : tensor<2x3xi32>
  return %r0 : tensor<2x3xi32>
}
// -----
// case: gather of rows keeps inside
// input: [[1, 2], [3, 4], [5, 6]]
// input: [[2], [-1]]
// output: [[5, 6], [1, 2]]
func.func @main(%a: tensor<3x2xi32>, %i: tensor<2x1xi32>) -> tensor<2x2xi32> {
  %r0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 2>}> : (tensor<3x2xi32>, tensor<2x1xi32>) -> tensor<2x2xi32>
  return %r0 : tensor<2x2xi32>
}
// -----
// case: scatter adds, and leaves out what lies outside
// input: [1, 2, 3]
// input: [[0], [2], [0], [3]]
// input: [10, 20, 30, 40]
// output: [41, 2, 23]
func.func @main(%a: tensor<3xi32>, %i: tensor<4x1xi32>, %u: tensor<4xi32>) -> tensor<3xi32> {
  %r0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<i32>, %y: tensor<i32>):
    %s = stablehlo.add %x, %y : tensor<i32>
    stablehlo.return %s : tensor<i32>
  }) : (tensor<3xi32>, tensor<4x1xi32>, tensor<4xi32>) -> tensor<3xi32>
  return %r0 : tensor<3xi32>
}
// -----
// case: sort of keys with values, stable and descending
// input: [1, 3, 1, 2]
// input: [10, 20, 30, 40]
// output: [3, 2, 1, 1]
// output: [20, 40, 10, 30]
func.func @main(%k: tensor<4xi32>, %v: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>) {
  %r0, %r1 = "stablehlo.sort"(%k, %v) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %s = stablehlo.compare GT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %s : tensor<i1>
  }) : (tensor<4xi32>, tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>)
  return %r0, %r1 : tensor<4xi32>, tensor<4xi32>
}
