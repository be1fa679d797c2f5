// case: add of integers wraps
// input: [127, -128, 1]
// input: [1, -1, 2]
// output: [-128, 127, 3]
func.func @main(%a: tensor<3xi8>, %b: tensor<3xi8>) -> tensor<3xi8> {
  %r0 = stablehlo.add %a, %b : tensor<3xi8>
  return %r0 : tensor<3xi8>
}
// -----
// case: add of single bits is or
// input: [0, 0, 1, 1]
// input: [0, 1, 0, 1]
// output: [0, 1, 1, 1]
func.func @main(%a: tensor<4xi1>, %b: tensor<4xi1>) -> tensor<4xi1> {
  %r0 = stablehlo.add %a, %b : tensor<4xi1>
  return %r0 : tensor<4xi1>
}
// -----
// case: multiply of single bits is and
// input: [0, 0, 1, 1]
// input: [0, 1, 0, 1]
// output: [0, 0, 0, 1]
func.func @main(%a: tensor<4xi1>, %b: tensor<4xi1>) -> tensor<4xi1> {
  %r0 = stablehlo.multiply %a, %b : tensor<4xi1>
  return %r0 : tensor<4xi1>
}
// -----
// case: maximum of i1
// input: [0, 0, 1, 1]
// input: [0, 1, 0, 1]
// output: [0, 1, 1, 1]
func.func @main(%a: tensor<4xi1>, %b: tensor<4xi1>) -> tensor<4xi1> {
  %r0 = stablehlo.maximum %a, %b : tensor<4xi1>
  return %r0 : tensor<4xi1>
}
// -----
// case: minimum of i1
// input: [0, 0, 1, 1]
// input: [0, 1, 0, 1]
// output: [0, 0, 0, 1]
func.func @main(%a: tensor<4xi1>, %b: tensor<4xi1>) -> tensor<4xi1> {
  %r0 = stablehlo.minimum %a, %b : tensor<4xi1>
  return %r0 : tensor<4xi1>
}
// -----
// case: xor of i1
// input: [0, 0, 1, 1]
// input: [0, 1, 0, 1]
// output: [0, 1, 1, 0]
func.func @main(%a: tensor<4xi1>, %b: tensor<4xi1>) -> tensor<4xi1> {
  %r0 = stablehlo.xor %a, %b : tensor<4xi1>
  return %r0 : tensor<4xi1>
}
// -----
// case: add of constant single bits is or
// output: [0, 1, 1, 1]
func.func @main() -> tensor<4xi1> {
  %a = stablehlo.constant dense<[false, false, true, true]> : tensor<4xi1>
  %b = stablehlo.constant dense<[false, true, false, true]> : tensor<4xi1>
  %r0 = stablehlo.add %a, %b : tensor<4xi1>
  return %r0 : tensor<4xi1>
}
// -----
// case: add of ui4
// input: [15, 3]
// input: [1, 4]
// output: [0, 7]
func.func @main(%a: tensor<2xui4>, %b: tensor<2xui4>) -> tensor<2xui4> {
  %r0 = stablehlo.add %a, %b : tensor<2xui4>
  return %r0 : tensor<2xui4>
}
// -----
// case: subtract of i4
// input: [-8, 7]
// input: [1, -1]
// output: [7, -8]
func.func @main(%a: tensor<2xi4>, %b: tensor<2xi4>) -> tensor<2xi4> {
  %r0 = stablehlo.subtract %a, %b : tensor<2xi4>
  return %r0 : tensor<2xi4>
}
// -----
// case: multiply of ui8
// input: [16, 255]
// input: [16, 2]
// output: [0, 254]
func.func @main(%a: tensor<2xui8>, %b: tensor<2xui8>) -> tensor<2xui8> {
  %r0 = stablehlo.multiply %a, %b : tensor<2xui8>
  return %r0 : tensor<2xui8>
}
// -----
// case: divide of integers rounds to zero; by zero gives -1
// input: [7, -7, 7, -7, 5, -2147483648]
// input: [2, 2, -2, -2, 0, -1]
// output: [3, -3, -3, 3, -1, -2147483648]
func.func @main(%a: tensor<6xi32>, %b: tensor<6xi32>) -> tensor<6xi32> {
  %r0 = stablehlo.divide %a, %b : tensor<6xi32>
  return %r0 : tensor<6xi32>
}
// -----
// case: remainder has the sign of the dividend; by zero gives it
// input: [7, -7, 7, -7, 5, -2147483648]
// input: [2, 2, -2, -2, 0, -1]
// output: [1, -1, 1, -1, 5, 0]
func.func @main(%a: tensor<6xi32>, %b: tensor<6xi32>) -> tensor<6xi32> {
  %r0 = stablehlo.remainder %a, %b : tensor<6xi32>
  return %r0 : tensor<6xi32>
}
// -----
// case: remainder of f32
// input: [7.5, -7.5, 5.0]
// input: [2.0, 2.0, Infinity]
// output: [1.5, -1.5, 5.0]
func.func @main(%a: tensor<3xf32>, %b: tensor<3xf32>) -> tensor<3xf32> {
  %r0 = stablehlo.remainder %a, %b : tensor<3xf32>
  return %r0 : tensor<3xf32>
}
// -----
// case: divide of unsigned; by zero gives all ones
// input: [200, 7, 9]
// input: [3, 0, 9]
// output: [66, 255, 1]
func.func @main(%a: tensor<3xui8>, %b: tensor<3xui8>) -> tensor<3xui8> {
  %r0 = stablehlo.divide %a, %b : tensor<3xui8>
  return %r0 : tensor<3xui8>
}
// -----
// case: divide of f32
// input: [1, -1, 0, 1]
// input: [0, 0, 0, 4]
// output: [Infinity, -Infinity, NaN, 0.25]
func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %r0 = stablehlo.divide %a, %b : tensor<4xf32>
  return %r0 : tensor<4xf32>
}
// -----
// case: maximum passes NaN on
// input: [1, NaN, 0, -0.0]
// input: [2, 0, NaN, 0.0]
// output: [2, NaN, NaN, 0.0]
func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %r0 = stablehlo.maximum %a, %b : tensor<4xf32>
  return %r0 : tensor<4xf32>
}
// -----
// case: power of i32
// input: [2, -3, 0, 5, 2]
// input: [10, 3, 0, 0, -1]
// output: [1024, -27, 1, 1, 0]
func.func @main(%a: tensor<5xi32>, %b: tensor<5xi32>) -> tensor<5xi32> {
  %r0 = stablehlo.power %a, %b : tensor<5xi32>
  return %r0 : tensor<5xi32>
}
// -----
// case: power of f64
// input: [2, 0, -8, 4]
// input: [0.5, 0, 3, -1]
// output: [1.4142135623730951, 1, -512, 0.25]
// near: 1e-12
func.func @main(%a: tensor<4xf64>, %b: tensor<4xf64>) -> tensor<4xf64> {
  %r0 = stablehlo.power %a, %b : tensor<4xf64>
  return %r0 : tensor<4xf64>
}
// -----
// case: atan2 of f64
// input: [0, 1, -1, 1]
// input: [1, 0, -1, -1]
// output: [0.0, 1.5707963267948966, -2.356194490192345, 2.356194490192345]
// near: 1e-12
func.func @main(%a: tensor<4xf64>, %b: tensor<4xf64>) -> tensor<4xf64> {
  %r0 = stablehlo.atan2 %a, %b : tensor<4xf64>
  return %r0 : tensor<4xf64>
}
// -----
// case: and of i16
// input: [12, -1]
// input: [10, 255]
// output: [8, 255]
func.func @main(%a: tensor<2xi16>, %b: tensor<2xi16>) -> tensor<2xi16> {
  %r0 = stablehlo.and %a, %b : tensor<2xi16>
  return %r0 : tensor<2xi16>
}
// -----
// case: or of ui16
// input: [12, 256]
// input: [10, 1]
// output: [14, 257]
func.func @main(%a: tensor<2xui16>, %b: tensor<2xui16>) -> tensor<2xui16> {
  %r0 = stablehlo.or %a, %b : tensor<2xui16>
  return %r0 : tensor<2xui16>
}
// -----
// case: xor of i64
// input: [5, -1]
// input: [3, 0]
// output: [6, -1]
func.func @main(%a: tensor<2xi64>, %b: tensor<2xi64>) -> tensor<2xi64> {
  %r0 = stablehlo.xor %a, %b : tensor<2xi64>
  return %r0 : tensor<2xi64>
}
// -----
// case: shift_left by the width gives 0
// input: [1, 1, 1, 64]
// input: [0, 7, 8, 2]
// output: [1, -128, 0, 0]
func.func @main(%a: tensor<4xi8>, %b: tensor<4xi8>) -> tensor<4xi8> {
  %r0 = stablehlo.shift_left %a, %b : tensor<4xi8>
  return %r0 : tensor<4xi8>
}
// -----
// case: shift_right_arithmetic of i8
// input: [-128, -1, 64, -5]
// input: [7, 9, 3, 1]
// output: [-1, -1, 8, -3]
func.func @main(%a: tensor<4xi8>, %b: tensor<4xi8>) -> tensor<4xi8> {
  %r0 = stablehlo.shift_right_arithmetic %a, %b : tensor<4xi8>
  return %r0 : tensor<4xi8>
}
// -----
// case: shift_right_logical of i8
// input: [-128, -1, 64, -1]
// input: [7, 9, 3, 1]
// output: [1, 0, 8, 127]
func.func @main(%a: tensor<4xi8>, %b: tensor<4xi8>) -> tensor<4xi8> {
  %r0 = stablehlo.shift_right_logical %a, %b : tensor<4xi8>
  return %r0 : tensor<4xi8>
}
// -----
// case: abs of the least integer is itself
// input: [-128, -5, 7]
// output: [-128, 5, 7]
func.func @main(%a: tensor<3xi8>) -> tensor<3xi8> {
  %r0 = stablehlo.abs %a : tensor<3xi8>
  return %r0 : tensor<3xi8>
}
// -----
// case: abs of f32
// input: [-0.0, -Infinity, -1.5]
// output: [0.0, Infinity, 1.5]
func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {
  %r0 = stablehlo.abs %a : tensor<3xf32>
  return %r0 : tensor<3xf32>
}
// -----
// case: negate of ui8
// input: [1, 0, 255]
// output: [255, 0, 1]
func.func @main(%a: tensor<3xui8>) -> tensor<3xui8> {
  %r0 = stablehlo.negate %a : tensor<3xui8>
  return %r0 : tensor<3xui8>
}
// -----
// case: not of i1
// input: [0, 1]
// output: [1, 0]
func.func @main(%a: tensor<2xi1>) -> tensor<2xi1> {
  %r0 = stablehlo.not %a : tensor<2xi1>
  return %r0 : tensor<2xi1>
}
// -----
// case: not of i8
// input: [0, -1, 5]
// output: [-1, 0, -6]
func.func @main(%a: tensor<3xi8>) -> tensor<3xi8> {
  %r0 = stablehlo.not %a : tensor<3xi8>
  return %r0 : tensor<3xi8>
}
// -----
// case: ceil of f32
// input: [1.2, -1.2, -0.5]
// output: [2, -1, -0.0]
func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {
  %r0 = stablehlo.ceil %a : tensor<3xf32>
  return %r0 : tensor<3xf32>
}
// -----
// case: floor of f32
// input: [1.2, -1.2, 0.5]
// output: [1, -2, 0]
func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {
  %r0 = stablehlo.floor %a : tensor<3xf32>
  return %r0 : tensor<3xf32>
}
// -----
// case: round_nearest_afz of f32
// input: [0.5, -0.5, 2.5, -2.5]
// output: [1, -1, 3, -3]
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %r0 = stablehlo.round_nearest_afz %a : tensor<4xf32>
  return %r0 : tensor<4xf32>
}
// -----
// case: round_nearest_even of f32
// input: [0.5, -0.5, 2.5, -3.5]
// output: [0, -0.0, 2, -4]
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %r0 = stablehlo.round_nearest_even %a : tensor<4xf32>
  return %r0 : tensor<4xf32>
}
// -----
// case: sign of f32
// input: [-3, 0.0, -0.0, NaN, Infinity]
// output: [-1, 0.0, -0.0, NaN, 1]
func.func @main(%a: tensor<5xf32>) -> tensor<5xf32> {
  %r0 = stablehlo.sign %a : tensor<5xf32>
  return %r0 : tensor<5xf32>
}
// -----
// case: sign of i32
// input: [-7, 0, 7]
// output: [-1, 0, 1]
func.func @main(%a: tensor<3xi32>) -> tensor<3xi32> {
  %r0 = stablehlo.sign %a : tensor<3xi32>
  return %r0 : tensor<3xi32>
}
// -----
// case: popcnt of ui8
// input: [0, 255, 5]
// output: [0, 8, 2]
func.func @main(%a: tensor<3xui8>) -> tensor<3xui8> {
  %r0 = stablehlo.popcnt %a : tensor<3xui8>
  return %r0 : tensor<3xui8>
}
// -----
// case: count_leading_zeros of i16
// input: [0, 1, -1, 256]
// output: [16, 15, 0, 7]
func.func @main(%a: tensor<4xi16>) -> tensor<4xi16> {
  %r0 = stablehlo.count_leading_zeros %a : tensor<4xi16>
  return %r0 : tensor<4xi16>
}
// -----
// case: is_finite of f32
// input: [1, Infinity, -Infinity, NaN]
// output: [1, 0, 0, 0]
func.func @main(%a: tensor<4xf32>) -> tensor<4xi1> {
  %r0 = stablehlo.is_finite %a : (tensor<4xf32>) -> tensor<4xi1>
  return %r0 : tensor<4xi1>
}
// -----
// case: exponential of f64
// input: [0, 1, -1]
// output: [1.0, 2.718281828459045, 0.36787944117144233]
// near: 1e-11
func.func @main(%a: tensor<3xf64>) -> tensor<3xf64> {
  %r0 = stablehlo.exponential %a : tensor<3xf64>
  return %r0 : tensor<3xf64>
}
// -----
// case: log of f64
// input: [1, 2, 0.5]
// output: [0.0, 0.6931471805599453, -0.6931471805599453]
// near: 1e-11
func.func @main(%a: tensor<3xf64>) -> tensor<3xf64> {
  %r0 = stablehlo.log %a : tensor<3xf64>
  return %r0 : tensor<3xf64>
}
// -----
// case: sine of f64
// input: [0, 1, -2]
// output: [0.0, 0.8414709848078965, -0.9092974268256817]
// near: 1e-11
func.func @main(%a: tensor<3xf64>) -> tensor<3xf64> {
  %r0 = stablehlo.sine %a : tensor<3xf64>
  return %r0 : tensor<3xf64>
}
// -----
// case: cosine of f64
// input: [0, 1, -2]
// output: [1.0, 0.5403023058681398, -0.4161468365471424]
// near: 1e-11
func.func @main(%a: tensor<3xf64>) -> tensor<3xf64> {
  %r0 = stablehlo.cosine %a : tensor<3xf64>
  return %r0 : tensor<3xf64>
}
// -----
// case: tan of f64
// input: [0, 1, -0.5]
// output: [0.0, 1.5574077246549023, -0.5463024898437905]
// near: 1e-11
func.func @main(%a: tensor<3xf64>) -> tensor<3xf64> {
  %r0 = stablehlo.tan %a : tensor<3xf64>
  return %r0 : tensor<3xf64>
}
// -----
// case: tanh of f64
// input: [0, 1, -2]
// output: [0.0, 0.7615941559557649, -0.9640275800758169]
// near: 1e-11
func.func @main(%a: tensor<3xf64>) -> tensor<3xf64> {
  %r0 = stablehlo.tanh %a : tensor<3xf64>
  return %r0 : tensor<3xf64>
}
// -----
// case: exponential_minus_one of f64
// input: [0, 1e-09, 1]
// output: [0.0, 1.0000000005000001e-09, 1.718281828459045]
// near: 1e-11
func.func @main(%a: tensor<3xf64>) -> tensor<3xf64> {
  %r0 = stablehlo.exponential_minus_one %a : tensor<3xf64>
  return %r0 : tensor<3xf64>
}
// -----
// case: log_plus_one of f64
// input: [0, 1e-09, 1]
// output: [0.0, 9.999999995e-10, 0.6931471805599453]
// near: 1e-11
func.func @main(%a: tensor<3xf64>) -> tensor<3xf64> {
  %r0 = stablehlo.log_plus_one %a : tensor<3xf64>
  return %r0 : tensor<3xf64>
}
// -----
// case: sqrt of f64
// input: [0, 2, 9]
// output: [0.0, 1.4142135623730951, 3.0]
// near: 1e-11
func.func @main(%a: tensor<3xf64>) -> tensor<3xf64> {
  %r0 = stablehlo.sqrt %a : tensor<3xf64>
  return %r0 : tensor<3xf64>
}
// -----
// case: rsqrt of f64
// input: [4, 2, 0.25]
// output: [0.5, 0.7071067811865475, 2.0]
// near: 1e-11
func.func @main(%a: tensor<3xf64>) -> tensor<3xf64> {
  %r0 = stablehlo.rsqrt %a : tensor<3xf64>
  return %r0 : tensor<3xf64>
}
// -----
// case: cbrt of f64
// input: [8, -27, 2]
// output: [2.0, -3.0, 1.2599210498948732]
// near: 1e-11
func.func @main(%a: tensor<3xf64>) -> tensor<3xf64> {
  %r0 = stablehlo.cbrt %a : tensor<3xf64>
  return %r0 : tensor<3xf64>
}
// -----
// case: logistic of f64
// input: [0, 2, -2]
// output: [0.5, 0.8807970779778823, 0.11920292202211755]
// near: 1e-11
func.func @main(%a: tensor<3xf64>) -> tensor<3xf64> {
  %r0 = stablehlo.logistic %a : tensor<3xf64>
  return %r0 : tensor<3xf64>
}
// -----
// case: clamp with bounds for all
// input: 0
// input: [-5, 0, 3, 9]
// input: 4
// output: [0, 0, 3, 4]
func.func @main(%l: tensor<i32>, %x: tensor<4xi32>, %h: tensor<i32>) -> tensor<4xi32> {
  %r0 = stablehlo.clamp %l, %x, %h : (tensor<i32>, tensor<4xi32>, tensor<i32>) -> tensor<4xi32>
  return %r0 : tensor<4xi32>
}
// -----
// case: select with one predicate for all
// input: 0
// input: [1, 2]
// input: [3, 4]
// output: [3, 4]
func.func @main(%p: tensor<i1>, %x: tensor<2xf32>, %y: tensor<2xf32>) -> tensor<2xf32> {
  %r0 = stablehlo.select %p, %x, %y : tensor<i1>, tensor<2xf32>
  return %r0 : tensor<2xf32>
}
// -----
// case: comparisons of floats with NaN
// input: [1, NaN, -0.0]
// input: [2, NaN, 0.0]
// output: [0, 0, 1]
// output: [1, 1, 0]
// output: [1, 0, 0]
func.func @main(%a: tensor<3xf32>, %b: tensor<3xf32>) -> (tensor<3xi1>, tensor<3xi1>, tensor<3xi1>) {
  %r0 = stablehlo.compare EQ, %a, %b, FLOAT : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xi1>
  %r1 = stablehlo.compare NE, %a, %b, FLOAT : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xi1>
  %r2 = stablehlo.compare LT, %a, %b, FLOAT : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xi1>
  return %r0, %r1, %r2 : tensor<3xi1>, tensor<3xi1>, tensor<3xi1>
}
// -----
// case: comparison in total order
// input: [-0.0, 1, Infinity, NaN]
// input: [0.0, NaN, NaN, NaN]
// output: [1, 1, 1, 0]
func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xi1> {
  %r0 = stablehlo.compare LT, %a, %b, TOTALORDER : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  return %r0 : tensor<4xi1>
}
// -----
// case: comparison of unsigned
// input: [200, 1]
// input: [100, 2]
// output: [1, 0]
func.func @main(%a: tensor<2xui8>, %b: tensor<2xui8>) -> tensor<2xi1> {
  %r0 = stablehlo.compare GT, %a, %b, UNSIGNED : (tensor<2xui8>, tensor<2xui8>) -> tensor<2xi1>
  return %r0 : tensor<2xi1>
}
// -----
// case: abs of complex<f64>
// input: [[3, 4], [-5, 12]]
// output: [5, 13]
// near: 1e-12
func.func @main(%a: tensor<2xcomplex<f64>>) -> tensor<2xf64> {
  %r0 = stablehlo.abs %a : (tensor<2xcomplex<f64>>) -> tensor<2xf64>
  return %r0 : tensor<2xf64>
}
