// SPDX-License-Identifier: Apache-2.0

package nl

// What the kernel sends for the part of an entry that does not exist.
const (
	pnetNoName = "n/a"
	pnetNoPort = 255
)

// pnetAnswer is an entry in a GET answer. It has all four attributes, with placeholders
// for the part that does not exist.
type pnetAnswer PNET

func (p *pnetAnswer) encode(ae *attrEncoder) {
	netdev, ibdev, port := pnetNoName, pnetNoName, uint8(pnetNoPort)
	if p.NetDev != "" {
		netdev = p.NetDev
	}
	if p.IBDev != "" {
		ibdev, port = p.IBDev, p.IBPort
	}
	ae.String(attrPNETName, p.ID)
	ae.String(attrPNETNetDev, netdev)
	ae.String(attrPNETIBDev, ibdev)
	ae.Uint8(attrPNETIBPort, port)
}

func (p *pnetAnswer) decode(ad *attrDecoder) error {
	if err := (*pnetRequest)(p).decode(ad); err != nil {
		return err
	}
	// A device can have the same name as the placeholder. The port shows the difference.
	if p.IBPort == pnetNoPort {
		p.IBDev, p.IBPort = "", 0
	} else if p.NetDev == pnetNoName {
		p.NetDev = ""
	}
	return nil
}

// pnetRequest is an entry in an ADD or DEL request. It has only the attributes that were
// given.
type pnetRequest PNET

func (p *pnetRequest) encode(ae *attrEncoder) {
	// Names are sent whole: the stack refuses one that is too long.
	ae.String(attrPNETName, p.ID)
	if p.NetDev != "" {
		ae.String(attrPNETNetDev, p.NetDev)
	}
	if p.IBDev != "" {
		ae.String(attrPNETIBDev, p.IBDev)
		if p.IBPort != 0 {
			ae.Uint8(attrPNETIBPort, p.IBPort)
		}
	}
}

func (p *pnetRequest) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrPNETName:
			p.ID = rawText(ad)
		case attrPNETNetDev:
			p.NetDev = rawText(ad)
		case attrPNETIBDev:
			p.IBDev = rawText(ad)
		case attrPNETIBPort:
			p.IBPort = number8(ad)
		}
	}
	return ad.Err()
}
