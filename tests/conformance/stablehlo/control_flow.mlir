// case: while
// input: 5
// output: 5
// output: 10
func.func @main(%n: tensor<i32>) -> (tensor<i32>, tensor<i32>) {
  %z = stablehlo.constant dense<0> : tensor<i32>
  %o = stablehlo.constant dense<1> : tensor<i32>
  %r0, %r1 = stablehlo.while(%i = %z, %s = %z) : tensor<i32>, tensor<i32>
  cond {
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %t = stablehlo.add %s, %i : tensor<i32>
    %j = stablehlo.add %i, %o : tensor<i32>
    stablehlo.return %j, %t : tensor<i32>, tensor<i32>
  }
  return %r0, %r1 : tensor<i32>, tensor<i32>
}
// -----
// case: case takes the last branch for an index outside
// input: -7
// input: 5
// output: -5
func.func @main(%i: tensor<i32>, %x: tensor<i32>) -> tensor<i32> {
  %r0 = "stablehlo.case"(%i) ({
    stablehlo.return %x : tensor<i32>
  }, {
    %n = stablehlo.negate %x : tensor<i32>
    stablehlo.return %n : tensor<i32>
  }) : (tensor<i32>) -> tensor<i32>
  return %r0 : tensor<i32>
}
// -----
// case: if
// input: 0
// input: 5
// output: -5
func.func @main(%p: tensor<i1>, %x: tensor<i32>) -> tensor<i32> {
  %r0 = "stablehlo.if"(%p) ({
    stablehlo.return %x : tensor<i32>
  }, {
    %n = stablehlo.negate %x : tensor<i32>
    stablehlo.return %n : tensor<i32>
  }) : (tensor<i1>) -> tensor<i32>
  return %r0 : tensor<i32>
}
// -----
// case: a function that is called, and a barrier of optimisations
// input: 21
// output: 42
func.func private @twice(%x: tensor<i32>) -> tensor<i32> {
  %0 = stablehlo.add %x, %x : tensor<i32>
  return %0 : tensor<i32>
}
func.func @main(%x: tensor<i32>) -> tensor<i32> {
  %a = func.call @twice(%x) : (tensor<i32>) -> tensor<i32>
  %r0 = stablehlo.optimization_barrier %a : tensor<i32>
  return %r0 : tensor<i32>
}
