// SPDX-License-Identifier: Apache-2.0

// Peer makes the connections of the tests in package interop, over AF_SMC sockets of the
// kernel or over TCP sockets under smcr run:
//
//	peer serve [-smc] [-check] ADDRESS:PORT
//	                                   echo on each connection until its end
//	peer echo [-smc] [-n N] [-parallel] [-bytes B] [-hold] [-tell] ADDRESS:PORT
//	                                   connect, compare the echo, close in order;
//	                                   with -tell print the result of each one
//	peer reset [-smc] [-n N] ADDRESS:PORT
//	                                   close with unread data
//	peer accept|connect [-smc] [-dir D] [-limit T] ADDRESS:PORT STEP...
//	                                   run the steps on one connection; see type
//	                                   script
//
// It needs no privilege.
package main
