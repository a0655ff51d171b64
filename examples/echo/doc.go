// SPDX-License-Identifier: Apache-2.0

// Echo shows how a Go program embeds a stack: its server sends back what it
// receives, its client sends standard input and prints what comes back, over
// SMC-R where the other side speaks it.
//
//	hostA# echo -listen :7777
//	hostB# echo hostA:7777
//
// Both let the commands of smcr list their stack: while they run, 'smcr
// linkgroup list' on their hosts prints the link group that they name. Where
// 'smcr serve' runs already, give them an address of their own:
//
//	hostA# echo -listen :7777 -control /run/echo.sock
//	hostA# smcr --backend unix:/run/echo.sock linkgroup list
//
// The stack has no configuration. With -direct the server has no buffer of its own: it
// copies what has arrived from the memory into which the client has written it to the
// memory from which it is sent.
//
// With -require a connection that is not SMC-R is refused. Needs root, or
// CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF.
package main
