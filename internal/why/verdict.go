// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"fmt"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/reasons"
	"smcr/nl"
	"smcr/smc"
)

// A Carrier is what carries a connection, or what a listener offers its clients.
type Carrier string

// The carriers.
const (
	SMCR Carrier = "SMC-R" // RDMA
	SMCD Carrier = "SMC-D" // direct memory of one machine
	TCP  Carrier = "TCP"   // TCP itself
)

// A Verdict is what there is to say about a socket.
type Verdict struct {
	Carrier Carrier
	// Over says by what, such as "the kernel, device mlx5_0". It is empty for TCP.
	Over string
	// Why is a sentence without its full stop.
	Why string
	// Reason is the name of the reason for smcr explain, or "".
	Reason string
	// Code is the number of the reason, and Peer that of the peer, or 0.
	Code, Peer smc.Diagnosis
	// Advice is what to do: a sentence.
	Advice string
}

// nothing is the advice where all is as it should be.
const nothing = "Nothing has to be done."

// notRun is the name of the reason of programs that are not under smcr run.
const notRun = "not-under-run"

// The advice about speed, beside that of the carrier.
const (
	slower = " TCP is faster than software RoCE: see smcr(7)."
	losing = " Packets are lost on the way: see 'ip -s link' on both hosts, and the MTU and the switches between them."
)

// Decide returns the verdict on a socket.
func Decide(f *Facts) Verdict {
	v := f.decide()
	switch {
	case f.ours():
		v.Advice = nothing // whatever it is: nobody can have smcr itself use SMC-R
	case f.losing() && v.Advice == nothing:
		v.Advice = losing[1:]
	case f.losing():
		v.Advice += losing
	case v.Carrier == SMCR && f.Software:
		v.Advice += slower
	}
	return v
}

func (f *Facts) decide() Verdict {
	switch {
	case f.listens():
		return f.listener()
	case f.Stack == "":
		return f.unknown()
	case f.Conn.Mode == nl.ModeTCP:
		return f.fallback()
	case f.Conn.State == smc.StateInit: // the program may have it
		return Verdict{Carrier: TCP, Why: "the connection is being made: it is not decided yet whether it uses SMC", Advice: "Ask again in a moment."}
	}
	v := Verdict{Advice: nothing}
	switch f.Conn.Mode {
	case nl.ModeSMCD:
		v.Carrier, v.Over, v.Why = SMCD, "the kernel", "both sides have SMC and an ISM device in common"
	default:
		v.Carrier, v.Over, v.Why = SMCR, f.device(), "both sides speak SMC and RoCE passes between them"
	}
	return v
}

// device describes what carries a connection over SMC-R.
func (f *Facts) device() string {
	kind, name := "", ""
	if l := f.Conn.Link; l != nil {
		name = " " + l.IBDev
	}
	switch {
	case f.Stack == kernel:
		kind = "the kernel, RDMA device"
	case f.Software:
		kind = "the user-space stack, software RoCE"
	default:
		kind = "the user-space stack, RDMA device"
	}
	if name == "" {
		name = " unknown"
	}
	return kind + name
}

// fallback is the verdict on a connection that a stack knows and that is TCP.
func (f *Facts) fallback() Verdict {
	own, peer := smc.Diagnosis(f.Conn.Fallback.Reason), smc.Diagnosis(f.Conn.Fallback.Peer)
	v := Verdict{Carrier: TCP, Code: own, Peer: peer}
	r, ok := reasons.Of(cmp.Or(peer, own))
	switch {
	case !ok && own == 0 && peer == 0 && f.Conn.State == smc.StateInit:
		v.Why, v.Advice = "the connection is being made", "Ask again when it is established."
		return v
	case !ok && own == 0 && peer == 0:
		v.Why, v.Advice = "the stack has no reason for it", "See 'smcr connection list'."
		return v
	case !ok:
		v.Why = fmt.Sprintf("the stack gives the reason 0x%08x, which this release does not know", uint32(cmp.Or(peer, own)))
		v.Advice = "Use a current smcr: 'smcr --version' shows which one this is."
		return v
	}
	v.Reason, v.Why, v.Advice = r.Name, r.Heading(), r.Cure[0]
	if peer != 0 {
		v.Why = "the peer declined: " + v.Why
	}
	if r.Code == smc.DiagPeerNoSMC {
		if f.Accepted {
			v.Advice = "Start the client's program with 'smcr run' on its host."
		} else {
			v.Advice = fmt.Sprintf("On the host of the server, 'smcr why :%d' says what is missing. Then try 'smcr check %v' here.", f.Conn.Remote.Port(), cmdutil.Plain(f.Conn.Remote))
		}
	}
	return v
}

// listener is the verdict on a listener.
func (f *Facts) listener() Verdict {
	switch {
	case f.Stack == "":
		return f.unknown()
	case f.Stack == kernel && f.Conn.Mode == nl.ModeTCP:
		return f.fallback()
	case f.Stack == kernel:
		return Verdict{Carrier: SMCR, Over: "the kernel", Why: "the program listens on an SMC socket (AF_SMC), so its clients can use SMC", Advice: nothing}
	}
	v := Verdict{Carrier: SMCR, Over: "the user-space stack", Why: "the program is under smcr run, or attached, and the listener announces SMC", Advice: nothing}
	if f.Process != nil && f.Process.IsStack {
		v.Why = "the program has an SMC stack of its own, and the listener announces SMC"
	}
	if f.Clients.TCP > 0 && f.Clients.SMC == 0 {
		v.Advice = fmt.Sprintf("The answer about each connection says why it is TCP: 'smcr why :%d' lists all.", f.Conn.Local.Port())
	}
	return v
}

// unknown is the verdict on a TCP socket that no stack lists.
func (f *Facts) unknown() Verdict {
	p := f.Process
	local := f.Here || f.listens() && f.Conn.Local.Addr().IsLoopback()
	switch {
	case p != nil && p.IsStack:
		return Verdict{Carrier: TCP, Why: "it belongs to the SMC stack itself", Advice: nothing}
	case f.ours():
		return Verdict{Carrier: TCP, Why: "it belongs to smcr itself: '" + p.Part + "'", Advice: nothing}
	case local:
		r, _ := reasons.Of(smc.DiagLocal)
		v := Verdict{Carrier: TCP, Reason: r.Name, Why: "both ends are on this machine, where smcr uses TCP, too", Advice: nothing}
		if f.listens() {
			v.Why = "it listens only at an address of this machine for itself: connections within a machine are TCP"
		}
		return v
	case p == nil:
		return f.hidden()
	case f.Translated:
		return f.passedOn()
	case f.NoWire != "" && !f.KernelStack:
		r, _ := reasons.Named("no-wire")
		return Verdict{Carrier: TCP, Reason: r.Name, Why: f.NoWire, Advice: r.Cure[1]}
	case !p.Attached:
		return f.notUnder()
	case !f.UserStack && !f.KernelStack:
		r, _ := reasons.Named("no-stack")
		return Verdict{Carrier: TCP, Reason: r.Name, Why: "the program is under smcr run, or attached, but no SMC stack runs here", Advice: r.Cure[0]}
	}
	return Verdict{
		Carrier: TCP, Why: "the program is under smcr run, or attached, but the connection is older than that, or than the stack",
		Advice: "The next connections use SMC if their peers do.",
	}
}

// passedOn is the verdict on a connection with an address of this machine whose other end is none of its sockets.
func (f *Facts) passedOn() Verdict {
	v := Verdict{Carrier: TCP, Advice: "Nothing has to be done if it stays on this machine."}
	if !f.Process.Attached {
		v = f.notUnder()
		v.Why += "; "
		v.Advice = "If it leaves this machine: " + strings.ToLower(v.Advice[:1]) + v.Advice[1:]
	}
	v.Why += "the peer has an address of this machine, but no socket here is the other end: a rule may pass the connection on (DNAT), to another host or to another network namespace"
	v.Advice = "'conntrack -L', as root, shows where it goes: that is not known here. " + v.Advice
	return v
}

// hidden is the verdict on a socket whose process is not visible.
func (f *Facts) hidden() Verdict {
	v := Verdict{Carrier: TCP}
	if f.UID != 0 && f.Conn.UID != f.UID {
		v.Why = "no SMC stack knows the socket; its process belongs to another user and is not visible to you"
		v.Advice = "Ask as root, who sees whether the program is under smcr run."
		return v
	}
	v.Why = "no SMC stack knows the socket, and no process has it that is visible here: it may be in another PID namespace"
	v.Advice = "Ask in the PID namespace of the program, or outside of containers."
	return v
}

// notUnder is the verdict on a TCP socket of a program that is in no attached cgroup.
func (f *Facts) notUnder() Verdict {
	v := Verdict{Carrier: TCP, Reason: notRun, Why: "the program was not started under smcr run"}
	switch {
	case f.KernelStack: // in mode kernel, some sockets of a program are TCP, and nobody knows how it was started
		v.Why = "the socket is one of TCP, and the kernel's SMC carries its own (AF_SMC): those of programs under smcr run"
	case !f.UserStack:
		v.Why += ", and no SMC stack runs here"
	}
	p := f.Process
	switch {
	case p.Container != "":
		v.Advice = fmt.Sprintf("Have the container use SMC-R, without a restart: 'smcr attach --container %s'; connections made before stay TCP.", p.shortContainer())
	case p.Unit != "":
		v.Advice = fmt.Sprintf("Have the service use SMC-R, without a restart: 'smcr service enable %s'; connections made before stay TCP.", p.Unit)
	case p.PID == 1:
		v.Advice = "The socket is one of a service that is started when it is needed: 'systemctl list-sockets' names both, then 'smcr service enable UNIT'."
	default:
		v.Advice = fmt.Sprintf("Start it again with 'smcr run -- %s'.", p.Start)
	}
	if !f.listens() && !f.Accepted && !f.Translated && f.Conn.Remote.IsValid() {
		v.Advice += fmt.Sprintf(" Whether the peer speaks SMC: 'smcr check %v'.", cmdutil.Plain(f.Conn.Remote))
	}
	return v
}
