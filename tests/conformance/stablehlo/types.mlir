// case: convert from f32 to i32
// input: [1.9, -1.9, 2000000000.0, 0]
// output: [1, -1, 2000000000, 0]
func.func @main(%a: tensor<4xf32>) -> tensor<4xi32> {
  %r0 = stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xi32>
  return %r0 : tensor<4xi32>
}
// -----
// case: convert from i32 to i8
// input: [300, -129, 127]
// output: [44, 127, 127]
func.func @main(%a: tensor<3xi32>) -> tensor<3xi8> {
  %r0 = stablehlo.convert %a : (tensor<3xi32>) -> tensor<3xi8>
  return %r0 : tensor<3xi8>
}
// -----
// case: convert from f32 to i1
// input: [0, -0.0, 0.5, NaN]
// output: [0, 0, 1, 1]
func.func @main(%a: tensor<4xf32>) -> tensor<4xi1> {
  %r0 = stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xi1>
  return %r0 : tensor<4xi1>
}
// -----
// case: convert from i1 to f32
// input: [0, 1]
// output: [0, 1]
func.func @main(%a: tensor<2xi1>) -> tensor<2xf32> {
  %r0 = stablehlo.convert %a : (tensor<2xi1>) -> tensor<2xf32>
  return %r0 : tensor<2xf32>
}
// -----
// case: convert to bf16 rounds to even
// input: [1.00390625, 1.01171875, 3.0]
// output: [1.0, 1.015625, 3.0]
func.func @main(%a: tensor<3xf32>) -> tensor<3xbf16> {
  %r0 = stablehlo.convert %a : (tensor<3xf32>) -> tensor<3xbf16>
  return %r0 : tensor<3xbf16>
}
// -----
// case: convert to f16 rounds and overflows
// input: [65504, 65520, 1e-08]
// output: [65504, Infinity, 0]
func.func @main(%a: tensor<3xf64>) -> tensor<3xf16> {
  %r0 = stablehlo.convert %a : (tensor<3xf64>) -> tensor<3xf16>
  return %r0 : tensor<3xf16>
}
// -----
// case: convert to f8E4M3FN
// input: [448, 464, 0.0009765625, -3.3]
// output: [448, 448, 0.0, -3.25]
func.func @main(%a: tensor<4xf32>) -> tensor<4xf8E4M3FN> {
  %r0 = stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xf8E4M3FN>
  return %r0 : tensor<4xf8E4M3FN>
}
// -----
// case: convert to f8E5M2
// input: [57344, 65536, 1.1]
// output: [57344, Infinity, 1.0]
func.func @main(%a: tensor<3xf32>) -> tensor<3xf8E5M2> {
  %r0 = stablehlo.convert %a : (tensor<3xf32>) -> tensor<3xf8E5M2>
  return %r0 : tensor<3xf8E5M2>
}
// -----
// case: convert from i4 to i32
// input: [-8, 7]
// output: [-8, 7]
func.func @main(%a: tensor<2xi4>) -> tensor<2xi32> {
  %r0 = stablehlo.convert %a : (tensor<2xi4>) -> tensor<2xi32>
  return %r0 : tensor<2xi32>
}
// -----
// case: convert from f32 to complex<f32>
// input: [1, -2]
// output: [[1, 0], [-2, 0]]
func.func @main(%a: tensor<2xf32>) -> tensor<2xcomplex<f32>> {
  %r0 = stablehlo.convert %a : (tensor<2xf32>) -> tensor<2xcomplex<f32>>
  return %r0 : tensor<2xcomplex<f32>>
}
// -----
// case: bits of a float
// input: [1.0, -0.0]
// output: [1065353216, 2147483648]
func.func @main(%a: tensor<2xf32>) -> tensor<2xui32> {
  %r0 = stablehlo.bitcast_convert %a : (tensor<2xf32>) -> tensor<2xui32>
  return %r0 : tensor<2xui32>
}
// -----
// case: a word as four bytes, the least first
// input: [16909060]
// output: [[4, 3, 2, 1]]
func.func @main(%a: tensor<1xui32>) -> tensor<1x4xui8> {
  %r0 = stablehlo.bitcast_convert %a : (tensor<1xui32>) -> tensor<1x4xui8>
  return %r0 : tensor<1x4xui8>
}
// -----
// case: two bytes as one half
// input: [[0, 60], [0, 192]]
// output: [1.0, -2.0]
func.func @main(%a: tensor<2x2xui8>) -> tensor<2xf16> {
  %r0 = stablehlo.bitcast_convert %a : (tensor<2x2xui8>) -> tensor<2xf16>
  return %r0 : tensor<2xf16>
}
// -----
// case: a byte as two half bytes
// input: [33, 240]
// output: [[1, 2], [0, 15]]
func.func @main(%a: tensor<2xui8>) -> tensor<2x2xui4> {
  %r0 = stablehlo.bitcast_convert %a : (tensor<2xui8>) -> tensor<2x2xui4>
  return %r0 : tensor<2x2xui4>
}
// -----
// case: real, imaginary and complex
// input: [1, 2]
// input: [3, -4]
// output: [[1, 3], [2, -4]]
// output: [1, 2]
// output: [3, -4]
func.func @main(%a: tensor<2xf32>, %b: tensor<2xf32>) -> (tensor<2xcomplex<f32>>, tensor<2xf32>, tensor<2xf32>) {
  %r0 = stablehlo.complex %a, %b : tensor<2xcomplex<f32>>
  %r1 = stablehlo.real %r0 : (tensor<2xcomplex<f32>>) -> tensor<2xf32>
  %r2 = stablehlo.imag %r0 : (tensor<2xcomplex<f32>>) -> tensor<2xf32>
  return %r0, %r1, %r2 : tensor<2xcomplex<f32>>, tensor<2xf32>, tensor<2xf32>
}
// -----
// case: multiply of complex<f32>
// input: [[1, 2], [0, 1]]
// input: [[3, -1], [0, 1]]
// output: [[5, 5], [-1, 0]]
func.func @main(%a: tensor<2xcomplex<f32>>, %b: tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>> {
  %r0 = stablehlo.multiply %a, %b : tensor<2xcomplex<f32>>
  return %r0 : tensor<2xcomplex<f32>>
}
// -----
// case: reduce_precision to five bits of exponent and two of mantissa
// input: [1.1, 1.2, 70000, -3.4]
// output: [1.0, 1.25, Infinity, -3.5]
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %r0 = stablehlo.reduce_precision %a, format = e5m2 : tensor<4xf32>
  return %r0 : tensor<4xf32>
}
// -----
// case: constants of f8E4M3FN are what is written
// output: [0.001953125, -448, 0.875, 1.125]
func.func @main() -> tensor<4xf8E4M3FN> {
  %r0 = stablehlo.constant dense<[0.001953125, -448.0, 0.875, 1.125]> : tensor<4xf8E4M3FN>
  return %r0 : tensor<4xf8E4M3FN>
}
// -----
// case: constants of f8E5M2 are what is written
// output: [6.103515625e-05, -57344, 0.875, 1.25]
func.func @main() -> tensor<4xf8E5M2> {
  %r0 = stablehlo.constant dense<[0.00006103515625000000, -57344.0, 0.875, 1.25]> : tensor<4xf8E5M2>
  return %r0 : tensor<4xf8E5M2>
}
// -----
// case: constants of f8E4M3FNUZ are what is written
// output: [0.0009765625, -240, 0.875, 1.125]
func.func @main() -> tensor<4xf8E4M3FNUZ> {
  %r0 = stablehlo.constant dense<[0.0009765625, -240.0, 0.875, 1.125]> : tensor<4xf8E4M3FNUZ>
  return %r0 : tensor<4xf8E4M3FNUZ>
}
// -----
// case: constants of f8E5M2FNUZ are what is written
// output: [7.62939453125e-06, -57344, 0.875, 1.25]
func.func @main() -> tensor<4xf8E5M2FNUZ> {
  %r0 = stablehlo.constant dense<[0.00000762939453125000, -57344.0, 0.875, 1.25]> : tensor<4xf8E5M2FNUZ>
  return %r0 : tensor<4xf8E5M2FNUZ>
}
// -----
// case: constants of bf16 are what is written
// output: [0.0078125, -3.0, 1.0078125, 256]
func.func @main() -> tensor<4xbf16> {
  %r0 = stablehlo.constant dense<[0.0078125, -3.0, 1.0078125, 256.0]> : tensor<4xbf16>
  return %r0 : tensor<4xbf16>
}
// -----
// case: constants of f16 are what is written
// output: [6.103515625e-05, -65504, 0.333251953125, 1]
func.func @main() -> tensor<4xf16> {
  %r0 = stablehlo.constant dense<[0.00006103515625000000, -65504.0, 0.333251953125, 1.0]> : tensor<4xf16>
  return %r0 : tensor<4xf16>
}
