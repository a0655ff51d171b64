// SPDX-License-Identifier: Apache-2.0

package smc

import (
	"fmt"
)

// Diagnosis is the reason given in a DECLINE, and the reason of a fallback to
// TCP. RFC 7609 leaves the values to the implementations; these are Linux's.
type Diagnosis uint32

// The diagnosis codes of Linux 6.
const (
	// DiagMem: not enough memory.
	DiagMem Diagnosis = 0x01010000
	// DiagTimeoutConfLink: timeout in CONFIRM LINK.
	DiagTimeoutConfLink Diagnosis = 0x02010000
	// DiagTimeoutAddLink: timeout in ADD LINK.
	DiagTimeoutAddLink Diagnosis = 0x02020000
	// DiagConfig: configuration error.
	DiagConfig Diagnosis = 0x03000000
	// DiagPeerNoSMC: the peer does not speak SMC.
	DiagPeerNoSMC Diagnosis = 0x03010000
	// DiagIPsec: connection uses IPsec.
	DiagIPsec Diagnosis = 0x03020000
	// DiagNoSMCDev: no SMC device.
	DiagNoSMCDev Diagnosis = 0x03030000
	// DiagNoSMCDDev: no SMC-D device.
	DiagNoSMCDDev Diagnosis = 0x03030001
	// DiagNoSMCRDev: no SMC-R device.
	DiagNoSMCRDev Diagnosis = 0x03030002
	// DiagNoISMv2: no ISM version 2 support.
	DiagNoISMv2 Diagnosis = 0x03030003
	// DiagNoV2Ext: peer sent no version 2 extension.
	DiagNoV2Ext Diagnosis = 0x03030004
	// DiagNoSMCDv2Ext: peer sent no SMC-D version 2 extension.
	DiagNoSMCDv2Ext Diagnosis = 0x03030005
	// DiagNoSEID: peer sent no system EID.
	DiagNoSEID Diagnosis = 0x03030006
	// DiagNoSMCDv2Dev: no SMC-D version 2 device.
	DiagNoSMCDv2Dev Diagnosis = 0x03030007
	// DiagNoUEID: no user EID in common.
	DiagNoUEID Diagnosis = 0x03030008
	// DiagRelease: release negotiation failed.
	DiagRelease Diagnosis = 0x03030009
	// DiagMaxConns: negotiation of connections per link group failed.
	DiagMaxConns Diagnosis = 0x0303000a
	// DiagMaxLinks: negotiation of links per link group failed.
	DiagMaxLinks Diagnosis = 0x0303000b
	// DiagModeMismatch: one peer offers only SMC-R, the other only SMC-D.
	DiagModeMismatch Diagnosis = 0x03040000
	// DiagRMBEEyecatcher: peer uses eyecatchers in RMB elements.
	DiagRMBEEyecatcher Diagnosis = 0x03050000
	// DiagSocketOption: socket option not supported by SMC.
	DiagSocketOption Diagnosis = 0x03060000
	// DiagPrefixMismatch: subnets or prefixes of the peers differ.
	DiagPrefixMismatch Diagnosis = 0x03070000
	// DiagVLAN: VLAN of the connection not found.
	DiagVLAN Diagnosis = 0x03080000
	// DiagISMVLAN: VLAN not usable on the ISM device.
	DiagISMVLAN Diagnosis = 0x03090000
	// DiagNoActiveLink: no active link in the link group.
	DiagNoActiveLink Diagnosis = 0x030a0000
	// DiagNoServerLink: link of the server not found.
	DiagNoServerLink Diagnosis = 0x030b0000
	// DiagVersion: SMC versions of the peers differ.
	DiagVersion Diagnosis = 0x030c0000
	// DiagMaxDMB: no more DMBs on the ISM device.
	DiagMaxDMB Diagnosis = 0x030d0000
	// DiagNoRoute: no route to the peer's RNIC.
	DiagNoRoute Diagnosis = 0x030e0000
	// DiagIndirect: peers disagree on direct or routed RoCE.
	DiagIndirect Diagnosis = 0x030f0000
	// DiagSilent: too many connections from the peer, or its network, have said nothing. Linux does not have this code, and it is never sent.
	DiagSilent Diagnosis = 0x03f90000
	// DiagCopied: something copies TCP options back, so that of SMC means nothing. Linux does not have this code, and it is never sent.
	DiagCopied Diagnosis = 0x03fb0000
	// DiagNoPath: RoCE does not pass between the hosts, although TCP does. Linux does not have this code.
	DiagNoPath Diagnosis = 0x03fd0000
	// DiagLocal: the peer is on this machine. Linux does not have this code, and it is never sent.
	DiagLocal Diagnosis = 0x03fa0000
	// DiagShort: connections to the peer were too short for SMC. Linux does not have this code, and it is never sent.
	DiagShort Diagnosis = 0x03fe0000
	// DiagSync: link group out of sync.
	DiagSync Diagnosis = 0x04000000
	// DiagPeerDeclined: peer declined. It is never sent.
	DiagPeerDeclined Diagnosis = 0x05000000
	// DiagInternal: internal error.
	DiagInternal Diagnosis = 0x09990000
	// DiagRToken: RToken not usable.
	DiagRToken Diagnosis = 0x09990001
	// DiagReadyLink: link could not be activated.
	DiagReadyLink Diagnosis = 0x09990002
	// DiagRegisterBuffers: buffers could not be registered.
	DiagRegisterBuffers Diagnosis = 0x09990003
)

// Codes that older Linux kernels (from 4.11) send.
const (
	// DiagOldTimeout: handshake timeout.
	DiagOldTimeout Diagnosis = 0x02040000
	// DiagOldReply: invalid handshake reply.
	DiagOldReply Diagnosis = 0x06000000
	// DiagOldSend: sending failed.
	DiagOldSend Diagnosis = 0x07000000
	// DiagOldInternal: internal error of an older Linux kernel.
	DiagOldInternal Diagnosis = 0x99990000
)

// Text returns what the code means, or "" for a code that is not known.
func (d Diagnosis) Text() string {
	switch d {
	case DiagMem:
		return "not enough memory"
	case DiagTimeoutConfLink:
		return "timeout in CONFIRM LINK"
	case DiagTimeoutAddLink:
		return "timeout in ADD LINK"
	case DiagConfig:
		return "configuration error"
	case DiagPeerNoSMC:
		return "the peer does not speak SMC"
	case DiagIPsec:
		return "connection uses IPsec"
	case DiagNoSMCDev:
		return "no SMC device"
	case DiagNoSMCDDev:
		return "no SMC-D device"
	case DiagNoSMCRDev:
		return "no SMC-R device"
	case DiagNoISMv2:
		return "no ISM version 2 support"
	case DiagNoV2Ext:
		return "peer sent no version 2 extension"
	case DiagNoSMCDv2Ext:
		return "peer sent no SMC-D version 2 extension"
	case DiagNoSEID:
		return "peer sent no system EID"
	case DiagNoSMCDv2Dev:
		return "no SMC-D version 2 device"
	case DiagNoUEID:
		return "no user EID in common"
	case DiagRelease:
		return "release negotiation failed"
	case DiagMaxConns:
		return "negotiation of connections per link group failed"
	case DiagMaxLinks:
		return "negotiation of links per link group failed"
	case DiagModeMismatch:
		return "one peer offers only SMC-R, the other only SMC-D"
	case DiagRMBEEyecatcher:
		return "peer uses eyecatchers in RMB elements"
	case DiagSocketOption:
		return "socket option not supported by SMC"
	case DiagPrefixMismatch:
		return "subnets or prefixes of the peers differ"
	case DiagVLAN:
		return "VLAN of the connection not found"
	case DiagISMVLAN:
		return "VLAN not usable on the ISM device"
	case DiagNoActiveLink:
		return "no active link in the link group"
	case DiagNoServerLink:
		return "link of the server not found"
	case DiagVersion:
		return "SMC versions of the peers differ"
	case DiagMaxDMB:
		return "no more DMBs on the ISM device"
	case DiagNoRoute:
		return "no route to the peer's RNIC"
	case DiagIndirect:
		return "peers disagree on direct or routed RoCE"
	case DiagSilent:
		return "connections of the peer said nothing"
	case DiagCopied:
		return "TCP options are copied back"
	case DiagNoPath:
		return "RoCE does not pass between the hosts: is UDP port 4791 open?"
	case DiagLocal:
		return "the peer is on this machine"
	case DiagShort:
		return "connections to the peer were too short for SMC"
	case DiagSync:
		return "link group out of sync"
	case DiagPeerDeclined:
		return "peer declined"
	case DiagInternal:
		return "internal error"
	case DiagRToken:
		return "RToken not usable"
	case DiagReadyLink:
		return "link could not be activated"
	case DiagRegisterBuffers:
		return "buffers could not be registered"
	case DiagOldTimeout:
		return "handshake timeout"
	case DiagOldReply:
		return "invalid handshake reply"
	case DiagOldSend:
		return "sending failed"
	case DiagOldInternal:
		return "internal error of an older Linux kernel"
	}
	return ""
}

// String returns the code in hex and what it means.
func (d Diagnosis) String() string {
	if t := d.Text(); t != "" {
		return fmt.Sprintf("0x%08x (%s)", uint32(d), t)
	}
	return fmt.Sprintf("0x%08x", uint32(d))
}
