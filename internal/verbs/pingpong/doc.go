// SPDX-License-Identifier: Apache-2.0

// Package pingpong speaks to ibv_rc_pingpong of rdma-core, in either role: both
// sides tell each other their queue pair as a line of text over TCP and then
// send one message to and fro. The package's own peer is itself or that program.
package pingpong
