// case: add of integers wraps
// input: [127, -128, 1]
// input: [1, -1, 2]
// output: [-128, 127, 3]
func.func @main(%a: tensor<3xi8>, %b: tensor<3xi8>) -> tensor<3xi8> {
  %0 = stablehlo.add %a, %b : tensor<3xi8>
  return %0 : tensor<3xi8>
}
