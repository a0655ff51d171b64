// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import "golang.org/x/sys/unix"

// sockTypeMask is the part of a socket type that is no flag (SOCK_TYPE_MASK in
// linux/net.h).
const sockTypeMask = 0xf

// kernelFilterProgram builds the classic BPF program for the kernel's SMC: it
// traps socket() for a TCP or Multipath TCP socket and the creation of Landlock
// rulesets, and nothing else.
func kernelFilterProgram() []unix.SockFilter {
	protocol := block{load(arg(2))}
	for _, p := range []uint32{0, unix.IPPROTO_TCP, ipprotoMPTCP} {
		protocol = append(protocol, whenEqual(p, block{ret(retNotify)})...)
	}
	protocol = append(protocol, ret(retAllow))

	stream := block{load(arg(1)), stmt(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, sockTypeMask)}
	stream = append(stream, whenEqual(unix.SOCK_STREAM, protocol)...)
	stream = append(stream, ret(retAllow))

	domain := block{
		load(arg(0)),
		jump(unix.BPF_JEQ, unix.AF_INET, 1, 0),
		jump(unix.BPF_JEQ, unix.AF_INET6, 0, len(stream)),
	}
	domain = append(append(domain, stream...), ret(retAllow))
	p := append(prologue(), whenEqual(unix.SYS_SOCKET, domain)...)
	p = append(p, whenEqual(unix.SYS_LANDLOCK_CREATE_RULESET, block{ret(retNotify)})...)
	return append(p, ret(retAllow))
}
