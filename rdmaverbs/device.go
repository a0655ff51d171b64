// SPDX-License-Identifier: Apache-2.0

package rdmaverbs

import (
	"context"
	"io"
	"net"

	"smcr/smc"
)

// A Provider finds and opens RDMA devices of one kind.
type Provider interface {
	// Name is the provider's short name, such as "softroce".
	Name() string
	// Devices returns the devices that Open accepts now, without opening them.
	// It returns the error of ctx if ctx is done, and errors of the system.
	Devices(ctx context.Context) ([]DeviceInfo, error)
	// Open opens the device of that name. For an unknown name the error wraps
	// ErrNoDevice. If ctx is done it returns the error of ctx.
	Open(ctx context.Context, name string) (Device, error)
}

// DeviceInfo describes a device that is not open.
type DeviceInfo struct {
	Name  string     // for Open
	Ports []PortInfo // Ports[0] is port 1
	// Software says that the device is only software on the netdevs of its
	// ports.
	Software bool
}

// PortInfo describes a port of a device that is not open.
type PortInfo struct {
	NetDev string // netdev below the port; empty if there is none
	PNETID string // pnetid that the hardware reports; empty if there is none
}

// An Explainer is a Provider that can say why a netdev has no device.
type Explainer interface {
	Provider
	// WhyNone returns the name that the device on netdev would have, and an
	// error with the reason why there is no such device. The error is nil if
	// there is one.
	WhyNone(ctx context.Context, netdev string) (device string, err error)
}

// A Device is an open RDMA device. Close flushes all its queue pairs and closes
// the channel of Events; a second Close returns ErrClosed.
type Device interface {
	io.Closer
	// Name is the device's name as listings show it, such as "mlx5_0".
	Name() string
	// Attr returns the limits and identity of the device.
	Attr() DeviceAttr
	// Port returns the state of a port, numbered from 1. It returns ErrInvalid
	// if there is no such port.
	Port(num int) (PortAttr, error)
	// GIDs returns the GID table of a port: element i is the entry with index
	// i. An entry with the zero GID is not in use. It returns ErrInvalid if
	// there is no such port.
	GIDs(port int) ([]GIDEntry, error)
	// AllocPD allocates a protection domain. It returns ErrClosed if the device
	// is closed, and ErrNoDevice if it is gone.
	AllocPD() (PD, error)
	// CreateCQ creates a completion queue for at least depth entries. See [CQ]
	// for the calls of notify, which may be nil. It returns ErrInvalid for a
	// wrong depth, ErrClosed if the device is closed, and ErrNoDevice if it is
	// gone.
	CreateCQ(depth int, notify func()) (CQ, error)
	// Events returns the channel of asynchronous events. It is closed when the
	// device is closed. If the channel is full, the device drops events and
	// does not block. So a reader must call Port after an event, and not rely
	// on the event alone.
	Events() <-chan AsyncEvent
}

// A RefusalCounter is a Device that counts what it refuses for the sake of security.
type RefusalCounter interface {
	Device
	// Refused returns the counts since the device was opened.
	Refused() Refused
}

// A ResentCounter is a Device that counts what it sends again.
type ResentCounter interface {
	Device
	// Resent returns the counts since the device was opened.
	Resent() Resent
}

// Resent counts what a device or a queue pair sent again because the peer had not acknowledged it: packets
// were lost, or the peer was late.
type Resent struct {
	Packets  uint64 // request packets that were sent again
	Timeouts uint64 // local ACK timeouts (InfiniBand specification, volume 1, section 9.7.6.1.3)
}

// Refused counts packets and requests that a device refused because they are not from the
// peer of a queue pair, or because the peer has no right to what they ask for. The counts
// stay near 0 unless somebody forges packets, or a peer has an error.
type Refused struct {
	Source uint64 // packets from the address of a peer, but not from the UDP port of its queue pair
	PSN    uint64 // requests with a PSN that the peer cannot have sent
	Key    uint64 // requests for memory with a remote key or an address that gives no access
}

// DeviceAttr has the identity and the limits of a device (ibv_device_attr).
type DeviceAttr struct {
	Provider string           // provider name
	NodeGUID [8]byte          // EUI-64, network byte order
	NumPorts int              // ports, numbered 1..NumPorts
	MaxQP    int              // queue pairs
	MaxMR    int              // memory regions
	MaxMsg   int              // largest message, bytes
	MaxSGE   int              // scatter/gather entries of a work request
	MaxQPWR  int              // outstanding work requests of a queue
	MaxRead  int              // outstanding RDMA READs of a queue pair, as responder
	NetDev   string           // netdev below port 1; empty if there is none
	IfIndex  int              // interface index of NetDev; 0 if there is none
	HWAddr   net.HardwareAddr // of NetDev, 6 bytes
	// OnDemandPaging says that memory regions do not pin their pages: the
	// device looks up a page when it accesses it. So DiscardBuffer may be used
	// on registered memory (IBV_ODP_SUPPORT of libibverbs, for all operations).
	OnDemandPaging bool
}

// PortState is the state of a port, with the values of the InfiniBand
// specification (PortInfo).
type PortState uint8

// Port states.
const (
	PortDown   PortState = 1 // no link
	PortInit   PortState = 2 // link, not configured by a subnet manager
	PortArmed  PortState = 3 // configured, not released for traffic
	PortActive PortState = 4 // carries traffic
)

// PortAttr describes a port at one moment.
type PortAttr struct {
	State     PortState
	MaxMTU    smc.MTU          // largest path MTU the device supports
	ActiveMTU smc.MTU          // largest path MTU that fits the present MTU of the netdev
	NetDev    string           // netdev below this port
	IfIndex   int              // its interface index
	HWAddr    net.HardwareAddr // its address, 6 bytes
	VLAN      uint16           // VLAN id of NetDev if it is a VLAN device, else 0
}

// GIDType is the encapsulation of the packets that use a GID table entry.
type GIDType uint8

// GID types.
const (
	RoCEv1 GIDType = 1 // ethertype 0x8915 with a GRH
	RoCEv2 GIDType = 2 // UDP destination port 4791
)

// GIDEntry is one entry of a port's GID table.
type GIDEntry struct {
	GID    smc.GID
	Type   GIDType
	NetDev string // netdev of the entry
}

// AsyncEventType is the kind of an asynchronous event.
type AsyncEventType uint8

// Asynchronous event types.
const (
	EventPortActive  AsyncEventType = iota + 1 // the port became active
	EventPortErr                               // the port is down
	EventGIDChange                             // the GID table changed
	EventMTUChange                             // the active MTU changed
	EventDeviceFatal                           // the device cannot be used any more: netdev removed or device closed
	EventQPFatal                               // a queue pair entered the error state
)

// An AsyncEvent is a change of a device or a queue pair that no call of the
// user caused.
type AsyncEvent struct {
	Type AsyncEventType
	Port int    // of port events
	QPN  uint32 // of queue pair events
}
