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
	// Devices lists the devices that Open accepts now, without opening them.
	Devices(ctx context.Context) ([]DeviceInfo, error)
	// Open opens the device of that name. An unknown name gives an error
	// for which errors.Is(err, ErrNoDevice) holds.
	Open(ctx context.Context, name string) (Device, error)
}

// DeviceInfo describes a device that is not open.
type DeviceInfo struct {
	Name  string     // for Open
	Ports []PortInfo // Ports[0] is port 1
	// Software tells that the device is only software on the netdevs of its ports.
	Software bool
}

// PortInfo describes a port of a device that is not open.
type PortInfo struct {
	NetDev string // netdev below the port; empty if there is none
	PNETID string // pnetid that the hardware reports; empty if there is none
}

// An Explainer is a Provider that knows why it has no device on a netdev.
type Explainer interface {
	Provider
	// WhyNone returns why no device stands on netdev, and the name that the device
	// would have. The error is nil if there is a device.
	WhyNone(ctx context.Context, netdev string) (device string, err error)
}

// A Device is an open RDMA device. Closing it flushes all its queue pairs.
type Device interface {
	io.Closer
	// Name is the device's name as listings show it, such as "mlx5_0".
	Name() string
	// Attr returns the limits and identity of the device.
	Attr() DeviceAttr
	// Port returns the state of a port, numbered from 1.
	Port(num int) (PortAttr, error)
	// GIDs returns the GID table of a port; an entry's place is its index. An
	// entry with the zero GID is not in use.
	GIDs(port int) ([]GIDEntry, error)
	// AllocPD allocates a protection domain.
	AllocPD() (PD, error)
	// CreateCQ creates a completion queue that holds at least depth
	// entries. See [CQ] for when notify is called; it may be nil.
	CreateCQ(depth int, notify func()) (CQ, error)
	// Events returns the channel of the device's asynchronous events. It
	// is closed with the device. Events that find the channel full are
	// merged, never blocking the device: a reader re-reads Port.
	Events() <-chan AsyncEvent
}

// DeviceAttr tells what a device is and can do.
type DeviceAttr struct {
	Provider string           // provider name
	NodeGUID [8]byte          // EUI-64, network byte order
	NumPorts int              // ports, numbered 1..NumPorts
	MaxQP    int              // queue pairs
	MaxMR    int              // memory regions
	MaxMsg   int              // largest message, bytes
	MaxSGE   int              // scatter/gather entries a work request
	MaxQPWR  int              // outstanding work requests a queue
	MaxRead  int              // outstanding RDMA READs a queue pair, as responder
	NetDev   string           // netdev below port 1; empty if there is none
	IfIndex  int              // interface index of NetDev; 0 if there is none
	HWAddr   net.HardwareAddr // of NetDev, 6 bytes
	// OnDemandPaging tells that memory regions do not pin their pages: the device
	// finds those that are there when it accesses them, so that DiscardBuffer may
	// be used on registered memory (IBV_ODP_SUPPORT of libibverbs, for all of its
	// operations).
	OnDemandPaging bool
}

// PortState is the state of a port (InfiniBand specification, PortInfo).
type PortState uint8

// Port states.
const (
	PortDown   PortState = 1
	PortInit   PortState = 2
	PortArmed  PortState = 3
	PortActive PortState = 4
)

// PortAttr describes a port at one moment.
type PortAttr struct {
	State     PortState
	MaxMTU    smc.MTU          // largest path MTU the device supports
	ActiveMTU smc.MTU          // largest path MTU that fits the netdev's MTU now
	NetDev    string           // netdev below this port
	IfIndex   int              // its interface index
	HWAddr    net.HardwareAddr // its address, 6 bytes
	VLAN      uint16           // VLAN id of NetDev if it is a VLAN device, else 0
}

// GIDType is the encapsulation that a GID table entry stands for.
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
	NetDev string // netdev that the entry belongs to
}

// AsyncEventType is the kind of an asynchronous event.
type AsyncEventType uint8

// Asynchronous event types.
const (
	EventPortActive  AsyncEventType = iota + 1 // port went up
	EventPortErr                               // port went down
	EventGIDChange                             // GID table changed
	EventMTUChange                             // active MTU changed
	EventDeviceFatal                           // device is gone: netdev removed or device closed
	EventQPFatal                               // a queue pair entered the error state
)

// An AsyncEvent is something that happened to a device unasked.
type AsyncEvent struct {
	Type AsyncEventType
	Port int    // port events
	QPN  uint32 // queue pair events
}
