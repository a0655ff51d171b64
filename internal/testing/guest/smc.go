// SPDX-License-Identifier: Apache-2.0

package guest

import "context"

// LoadSMC loads the modules of SMC, its sock_diag part and soft-RoCE.
func (g *Guest) LoadSMC(ctx context.Context) error {
	return g.all(ctx, []string{"modprobe", "-a", "rdma_rxe", "smc", "smc_diag"})
}

// LoadStack loads what the stack in user space needs of the kernel to take connections: a request from a network namespace does
// not always load it.
func (g *Guest) LoadStack(ctx context.Context) error {
	return g.all(ctx, []string{"modprobe", "-a", "veth", "sch_ingress", "cls_bpf"})
}

// AddRXE makes a soft-RoCE device on a network device in the guest's initial network
// namespace. Such a device has only RoCEv2 GIDs, one for each address, so Linux uses
// SMC-Rv2 over it. It needs LoadSMC.
func (g *Guest) AddRXE(ctx context.Context, name, netdev string) error {
	return g.all(ctx, []string{"rdma", "link", "add", name, "type", "rxe", "netdev", netdev})
}

// AddAddr adds an address with its prefix length, such as 10.0.0.1/24, to a network
// device and sets the device up.
func (g *Guest) AddAddr(ctx context.Context, netdev, addr string) error {
	return g.all(ctx,
		[]string{"ip", "addr", "add", addr, "dev", netdev},
		[]string{"ip", "link", "set", netdev, "up"})
}

// AddVeth makes a veth pair: name in the initial network namespace, and peer in the
// network namespace netns, which AddVeth makes too. If netns is "", peer is in the
// initial namespace. In netns, lo is up. Both ends are up, without addresses.
func (g *Guest) AddVeth(ctx context.Context, name, peer, netns string) error {
	err := g.all(ctx,
		[]string{"ip", "link", "add", name, "type", "veth", "peer", "name", peer},
		[]string{"ip", "link", "set", name, "up"})
	if err != nil {
		return err
	}
	if netns == "" {
		return g.all(ctx, []string{"ip", "link", "set", peer, "up"})
	}
	return g.all(ctx,
		[]string{"ip", "netns", "add", netns},
		[]string{"ip", "link", "set", peer, "netns", netns},
		[]string{"ip", "-n", netns, "link", "set", "lo", "up"},
		[]string{"ip", "-n", netns, "link", "set", peer, "up"})
}

// all runs commands in order until one fails.
func (g *Guest) all(ctx context.Context, commands ...[]string) error {
	for _, argv := range commands {
		if _, err := g.Run(ctx, argv...); err != nil {
			return err
		}
	}
	return nil
}
