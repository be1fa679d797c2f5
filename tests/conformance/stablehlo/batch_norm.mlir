// case: training: normalised, mean and variance
// input: [[1, 10], [3, 30]]
// input: [1, 2]
// input: [0, 5]
// output: [[-1, 3], [1, 7]]
// output: [2, 20]
// output: [1, 100]
// near: 1e-12
func.func @main(%x: tensor<2x2xf64>, %s: tensor<2xf64>, %o: tensor<2xf64>) -> (tensor<2x2xf64>, tensor<2xf64>, tensor<2xf64>) {
  %r0, %r1, %r2 = "stablehlo.batch_norm_training"(%x, %s, %o) <{epsilon = 0.0 : f32, feature_index = 1 : i64}> : (tensor<2x2xf64>, tensor<2xf64>, tensor<2xf64>) -> (tensor<2x2xf64>, tensor<2xf64>, tensor<2xf64>)
  return %r0, %r1, %r2 : tensor<2x2xf64>, tensor<2xf64>, tensor<2xf64>
}
// -----
// case: inference
// input: [[1, 10], [3, 30]]
// input: [1, 2]
// input: [0, 5]
// input: [2, 20]
// input: [4, 25]
// output: [[-0.5, 1], [0.5, 9]]
// near: 1e-12
func.func @main(%x: tensor<2x2xf64>, %s: tensor<2xf64>, %o: tensor<2xf64>, %m: tensor<2xf64>, %v: tensor<2xf64>) -> tensor<2x2xf64> {
  %r0 = "stablehlo.batch_norm_inference"(%x, %s, %o, %m, %v) <{epsilon = 0.0 : f32, feature_index = 1 : i64}> : (tensor<2x2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>) -> tensor<2x2xf64>
  return %r0 : tensor<2x2xf64>
}
// -----
// case: grad
// input: [[1], [3]]
// input: [2]
// input: [2]
// input: [1]
// input: [[1], [5]]
// output: [[0], [0]]
// output: [4]
// output: [6]
// near: 1e-12
func.func @main(%x: tensor<2x1xf64>, %s: tensor<1xf64>, %m: tensor<1xf64>, %v: tensor<1xf64>, %g: tensor<2x1xf64>) -> (tensor<2x1xf64>, tensor<1xf64>, tensor<1xf64>) {
  %r0, %r1, %r2 = "stablehlo.batch_norm_grad"(%x, %s, %m, %v, %g) <{epsilon = 0.0 : f32, feature_index = 1 : i64}> : (tensor<2x1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<2x1xf64>) -> (tensor<2x1xf64>, tensor<1xf64>, tensor<1xf64>)
  return %r0, %r1, %r2 : tensor<2x1xf64>, tensor<1xf64>, tensor<1xf64>
}
