// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"smcr/smc"
)

// A PCI identifies the PCI function of a device.
type PCI struct {
	FID    uint32 // function ID (s390)
	CHID   uint16 // channel ID (s390)
	Vendor uint16
	Device uint16
	ID     string // address, such as "0001:00:00.0"
}

// A Port is a port of a device.
type Port struct {
	PNETUser bool   // the pnetid was set by a user, not by the hardware
	PNETID   string // or ""
	NetDev   uint32 // index of its network device, or 0
	Active   bool
	Valid    bool   // the port exists
	Links    uint32 // links over this port

	// The fields below are set only by stacks in user space.

	GID smc.GID
	MTU uint32 // active path MTU in bytes
}

func (p *Port) encode(ae *attrEncoder) {
	boolAttr(ae, attrPortPNETUser, p.PNETUser)
	limited(ae, attrPortPNETID, p.PNETID, 16)
	ae.Uint32(attrPortNetDev, p.NetDev)
	boolAttr(ae, attrPortValid, p.Valid)
	boolAttr(ae, attrPortState, p.Active)
	ae.Uint32(attrPortLinks, p.Links)
	if !p.GID.IsZero() {
		ae.String(attrPortGID, p.GID.String())
	}
	if p.MTU != 0 {
		ae.Uint32(attrPortMTU, p.MTU)
	}
}

func (p *Port) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrPortPNETUser:
			p.PNETUser = number(ad) != 0
		case attrPortPNETID:
			p.PNETID = text(ad)
		case attrPortNetDev:
			p.NetDev = number32(ad)
		case attrPortValid:
			p.Valid = number(ad) != 0
		case attrPortState:
			p.Active = number(ad) != 0
		case attrPortLinks:
			p.Links = number32(ad)
		case attrPortGID:
			p.GID = lenientGID(text(ad))
		case attrPortMTU:
			p.MTU = number32(ad)
		}
	}
	return ad.Err()
}

// A Device is a RoCE device, or an ISM device of SMC-D.
type Device struct {
	Name     string // of the RoCE device; empty for ISM
	UseCount uint32 // link groups that use it
	Critical bool   // without it connections end, because no failover is possible
	PCI      *PCI   // nil for a device without PCI function
	Ports    []Port // one or two; index 0 is port 1

	// The fields below are set only by stacks in user space.

	Provider string // what implements the verbs, such as "softroce"
	Refused  Refused

	// Resent is nil if the device does not count it or is not in use.
	Resent *Resent
}

// softRoCE is the Provider of devices in software.
const softRoCE = "softroce"

// SoftwareRoCE reports whether a stack in user space makes the device in software, so that no
// RDMA card does the work. It is false for all devices of the kernel: the kernel does not say.
func (d *Device) SoftwareRoCE() bool { return d.Provider == softRoCE }

// Resent counts what a device sent again since it was opened, or a link since it was made,
// because the peer had not acknowledged it.
type Resent struct {
	Packets  uint64 // request packets that were sent again
	Timeouts uint64 // local ACK timeouts: no answer came in time
}

// SumResent returns the sum of what devices sent again, or nil if none of them counts it.
func SumResent(devices []Device) (sum *Resent) {
	for i := range devices {
		r := devices[i].Resent
		if r == nil {
			continue
		}
		if sum == nil {
			sum = new(Resent)
		}
		sum.Packets += r.Packets
		sum.Timeouts += r.Timeouts
	}
	return sum
}

// Refused counts what a device in user space refused since it was opened, because it was
// not from the peer of a queue pair or because the peer had no right to it.
type Refused struct {
	Source uint64 // packets from the address of a peer, but not from the UDP port of its queue pair
	PSN    uint64 // requests with a packet sequence number that the peer cannot have sent
	Key    uint64 // requests for memory with a remote key or an address that gives no access
}

// Total returns the sum of all counts.
func (r *Refused) Total() uint64 { return r.Source + r.PSN + r.Key }

func (d *Device) encode(ae *attrEncoder) {
	// The order of the attributes, and which of them are missing, is that of the kernel.
	boolAttr(ae, attrDevCritical, d.Critical)
	if d.UseCount != 0 {
		ae.Uint32(attrDevUseCount, d.UseCount)
	}
	if d.PCI != nil {
		ae.Uint32(attrDevPCIFID, d.PCI.FID)
		ae.Uint16(attrDevPCICHID, d.PCI.CHID)
		ae.Uint16(attrDevPCIVendor, d.PCI.Vendor)
		ae.Uint16(attrDevPCIDevice, d.PCI.Device)
		limited(ae, attrDevPCIID, d.PCI.ID, 63)
	}
	if d.Name != "" {
		limited(ae, attrDevIBName, d.Name, 63)
	}
	if len(d.Ports) > 0 {
		nest(ae, attrDevPort, &d.Ports[0])
	}
	if len(d.Ports) > 1 {
		nest(ae, attrDevPort2, &d.Ports[1])
	}
	if d.Provider != "" {
		limited(ae, attrDevProvider, d.Provider, 63)
	}
	if d.Refused != (Refused{}) {
		ae.Uint64(attrDevRefusedSource, d.Refused.Source)
		ae.Uint64(attrDevRefusedPSN, d.Refused.PSN)
		ae.Uint64(attrDevRefusedKey, d.Refused.Key)
	}
	if d.Resent != nil {
		ae.Uint64(attrDevRetransmits, d.Resent.Packets)
		ae.Uint64(attrDevTimeouts, d.Resent.Timeouts)
	}
}

// resent returns the counters of what the device sent again, which the message has.
func (d *Device) resent() *Resent {
	if d.Resent == nil {
		d.Resent = new(Resent)
	}
	return d.Resent
}

func (d *Device) decode(ad *attrDecoder) error {
	pci := func() *PCI {
		if d.PCI == nil {
			d.PCI = new(PCI)
		}
		return d.PCI
	}
	for ad.Next() {
		switch ad.Type() {
		case attrDevCritical:
			d.Critical = number(ad) != 0
		case attrDevUseCount:
			d.UseCount = number32(ad)
		case attrDevPCIFID:
			pci().FID = number32(ad)
		case attrDevPCICHID:
			pci().CHID = number16(ad)
		case attrDevPCIVendor:
			pci().Vendor = number16(ad)
		case attrDevPCIDevice:
			pci().Device = number16(ad)
		case attrDevPCIID:
			pci().ID = text(ad)
		case attrDevIBName:
			d.Name = text(ad)
		case attrDevPort:
			d.port(0, ad)
		case attrDevPort2:
			d.port(1, ad)
		case attrDevProvider:
			d.Provider = text(ad)
		case attrDevRefusedSource:
			d.Refused.Source = number(ad)
		case attrDevRefusedPSN:
			d.Refused.PSN = number(ad)
		case attrDevRefusedKey:
			d.Refused.Key = number(ad)
		case attrDevRetransmits:
			d.resent().Packets = number(ad)
		case attrDevTimeouts:
			d.resent().Timeouts = number(ad)
		}
	}
	return ad.Err()
}

func (d *Device) port(i int, ad *attrDecoder) {
	for len(d.Ports) <= i {
		d.Ports = append(d.Ports, Port{})
	}
	denest(ad, &d.Ports[i])
}
