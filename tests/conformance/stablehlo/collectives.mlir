// case: all_reduce
// ranks: 4
// input: [[1, 2], [3, 4], [5, 6], [7, 8]]
// output: [[4, 6], [4, 6], [12, 14], [12, 14]]
module @m attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%a: tensor<2xi32>) -> tensor<2xi32> {
    %r0 = "stablehlo.all_reduce"(%a) <{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
    ^bb0(%x: tensor<i32>, %y: tensor<i32>):
      %s = stablehlo.add %x, %y : tensor<i32>
      stablehlo.return %s : tensor<i32>
    }) : (tensor<2xi32>) -> tensor<2xi32>
    return %r0 : tensor<2xi32>
  }
}
// -----
// case: all_gather
// ranks: 4
// input: [[1], [2], [3], [4]]
// output: [[1, 2], [1, 2], [3, 4], [3, 4]]
module @m attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%x: tensor<1xi32>) -> tensor<2xi32> {
    %r0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> : (tensor<1xi32>) -> tensor<2xi32>
    return %r0 : tensor<2xi32>
  }
}
// -----
// case: reduce_scatter
// ranks: 4
// input: [[1, 2], [3, 4], [5, 6], [7, 8]]
// output: [[4], [6], [12], [14]]
module @m attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%a: tensor<2xi32>) -> tensor<1xi32> {
    %r0 = "stablehlo.reduce_scatter"(%a) <{scatter_dimension = 0 : i64, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
    ^bb0(%x: tensor<i32>, %y: tensor<i32>):
      %s = stablehlo.add %x, %y : tensor<i32>
      stablehlo.return %s : tensor<i32>
    }) : (tensor<2xi32>) -> tensor<1xi32>
    return %r0 : tensor<1xi32>
  }
}
// -----
// case: all_to_all splits one dimension and joins another
// ranks: 4
// input: [[[1], [2]], [[3], [4]], [[5], [6]], [[7], [8]]]
// output: [[[1, 3]], [[2, 4]], [[5, 7]], [[6, 8]]]
module @m attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%x: tensor<2x1xi32>) -> tensor<1x2xi32> {
    %r0 = "stablehlo.all_to_all"(%x) <{split_dimension = 0 : i64, concat_dimension = 1 : i64, split_count = 2 : i64, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}> : (tensor<2x1xi32>) -> tensor<1x2xi32>
    return %r0 : tensor<1x2xi32>
  }
}
// -----
// case: all_to_all of two operands
// ranks: 4
// input: [[1, 2], [3, 4], [5, 6], [7, 8]]
// input: [[1, 2], [3, 4], [5, 6], [7, 8]]
// output: [[1, 3], [2, 4], [5, 7], [6, 8]]
// output: [[1, 3], [2, 4], [5, 7], [6, 8]]
module @m attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%x: tensor<2xi32>, %y: tensor<2xf32>) -> (tensor<2xi32>, tensor<2xf32>) {
    %r0, %r1 = "stablehlo.all_to_all"(%x, %y) <{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}> : (tensor<2xi32>, tensor<2xf32>) -> (tensor<2xi32>, tensor<2xf32>)
    return %r0, %r1 : tensor<2xi32>, tensor<2xf32>
  }
}
// -----
// case: all_gather of two operands
// ranks: 4
// input: [[1], [2], [3], [4]]
// input: [[1], [2], [3], [4]]
// output: [[1, 2], [1, 2], [3, 4], [3, 4]]
// output: [[1, 2], [1, 2], [3, 4], [3, 4]]
module @m attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%x: tensor<1xi32>, %y: tensor<1xf32>) -> (tensor<2xi32>, tensor<2xf32>) {
    %r0, %r1 = "stablehlo.all_gather"(%x, %y) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> : (tensor<1xi32>, tensor<1xf32>) -> (tensor<2xi32>, tensor<2xf32>)
    return %r0, %r1 : tensor<2xi32>, tensor<2xf32>
  }
}
// -----
// case: collective_permute
// ranks: 4
// input: [[1], [2], [3], [4]]
// output: [[2], [1], [0], [3]]
module @m attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%x: tensor<1xi32>) -> tensor<1xi32> {
    %r0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1], [1, 0], [2, 3]]> : tensor<3x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}> : (tensor<1xi32>) -> tensor<1xi32>
    return %r0 : tensor<1xi32>
  }
}
// -----
// case: collective_broadcast
// ranks: 4
// input: [[1], [2], [3], [4]]
// output: [[2], [2], [3], [3]]
module @m attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%x: tensor<1xi32>) -> tensor<1xi32> {
    %r0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = dense<[[1, 0], [2, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}> : (tensor<1xi32>) -> tensor<1xi32>
    return %r0 : tensor<1xi32>
  }
}
// -----
// case: partition_id
// ranks: 4
// output: [0, 1, 2, 3]
module @m attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main() -> tensor<ui32> {
    %r0 = stablehlo.partition_id : tensor<ui32>
    return %r0 : tensor<ui32>
  }
}
