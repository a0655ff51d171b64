// SPDX-License-Identifier: Apache-2.0

// Command peer makes the connections of the tests in package interop, over
// AF_SMC sockets of the kernel or over TCP sockets, which smcr run takes over:
//
//	peer serve [-smc] [-check] ADDRESS:PORT
//	                                   echo each connection to its end
//	peer echo [-smc] [-n N] [-parallel] [-bytes B] [-hold] [-tell] ADDRESS:PORT
//	                                   connect, compare the echo, close in order;
//	                                   with -tell write what became of each one
//	peer reset [-smc] [-n N] ADDRESS:PORT
//	                                   close with data unread
//	peer accept|connect [-smc] [-dir D] [-limit T] ADDRESS:PORT STEP...
//	                                   one connection, on which the steps are
//	                                   done in their order; see type script
//
// It needs no privilege.
package main
