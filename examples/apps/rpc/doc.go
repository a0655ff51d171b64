// SPDX-License-Identifier: Apache-2.0

// Rpc is a gRPC server and a gRPC client over SMC-R.
//
//	hostA# rpc -listen :5000
//	hostB# rpc hostA:5000
//
// The server gives its [grpc.Server] a listener of a stack. The client gives
// [grpc.NewClient] a dialer that uses the stack. The service is the health service of gRPC,
// so no code has to be generated: the client asks once (unary), then watches until the server
// stops serving (stream). Tools such as grpc_health_probe under `smcr run` are clients too.
package main
