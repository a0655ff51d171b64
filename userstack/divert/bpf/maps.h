/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the programs and user space have in common: values that are set before the programs are loaded, types, and maps. Maps that a
 * program writes are not written by user space, and the reverse, but for deletion, so neither overwrites what the other has just written.
 * A value of map ways has one writer after the other.
 */

/* Set before the programs are loaded. */
volatile const __u32 veth;	/* ifindex of this end of the way to the stack's sockets */
volatile const __u32 hold;	/* ifindex of the device of held packets */
volatile const __u32 mark;	/* of packets that come from the stack, until the device has seen them */
volatile const __u32 per_user;	/* how many flows a user other than root may have */
volatile const __u32 of_root;	/* how many root may have */
volatile const __u32 of_all;	/* how many all may have */
volatile const __u32 last;	/* how many of these are for users who have few */
volatile const __u32 quiet_sets;	/* how many sets of seats a user has in map quiet */
volatile const __u32 plain_sets;	/* and in map plains */
volatile const __u32 undecided_most;	/* how many connections of servers may be undecided */
volatile const __u64 seed;	/* of the hash that says where they are counted: nobody knows it */

/*
 * A place in a map that holds so much of each user and no more: the seats of a user come in sets, and what is kept may be in
 * those of one set. If all of these are taken, it takes that of another thing of the same user.
 */
#define SEATS 4
struct seat {
	__u32 account;	/* the user to whom it is charged */
	__u32 at;
};

/* What a socket of a cgroup does: the bits of the values of cgroups. */
#define CONNECTS 1
#define ACCEPTS 2
#define ALWAYS 4	/* announces also where many connections were too short */

/* Where a packet of a program goes next: a device, and the Ethernet address there. */
struct hop {
	__u32 dev;
	__u8 mac[8];	/* the last two are 0 */
};

/* A connection, as this host sees it. IPv4 addresses are IPv4-mapped. */
struct tuple {
	__u8 local[16], remote[16];
	__be16 lport, rport;
};

/* A TCP header with its options: 60 bytes, and what makes any index of 6 bits right. */
struct header {
	__u8 len;
	__u8 b[64];
};

/* From where a peer comes: the Ethernet address of a neighbour, or a network behind a router. The rest is 0. */
struct origin {
	__u8 net[16];	/* IPv4 is IPv4-mapped */
	__u8 mac[8];	/* the last two are 0 */
};

/* Where a connection of a server is counted while it is undecided: see undecided.h. */
#define FLOW_SLOTS 6
#define NO_SLOT 0xffffffff

/* A connection that this host has announced. Programs write it. */
struct flow {
	__u64 id;
	__u64 cookie;	/* of the socket; of a server, that of the socket that accept() will return */
	__u64 cgroup;	/* the one in cgroups that the socket is in or below */
	__u32 uid;
	__u32 account;	/* the user to whom it is charged */
	struct hop via;	/* of the packet that announced it */
	__u32 isn;	/* sequence numbers of the SYN of this side and of the other one */
	__u32 peer_isn;	/* of a client: not known */
	struct origin from;	/* of a server */
	__u32 slots[FLOW_SLOTS];	/* likewise, or NO_SLOT */
	__u8 server;
	__u8 held;
	struct header own;	/* SYN of a client, SYN-ACK of a server, before the option was added */
	struct header peer;	/* SYN, of a server */
};

/*
 * Where the packets of a flow go. The program makes it, user space writes it until it is SPLIT, and then the program alone.
 * PROBED is a client's that stays TCP: they go as they do, and the end of its handshake takes the probe along. FROZEN is
 * SPLIT, but packets lose their data.
 */
enum { HELD, OUTER, SPLIT, PROBED, FROZEN };
struct way {
	__u32 state;
	__u32 isn;
	struct hop via;	/* of the last packet of the program; what it receives comes as if by this device, and what outer sends goes by it */
	__u64 asked[2];	/* when a SYN last went to the stack: of the program, and of the peer */
};

/*
 * How long the next SYNs with the addresses of a connection that there is do not go to the stack, in nanoseconds: a flood would keep it
 * from the packets of others. It is less than until TCP repeats one.
 */
#define ASKED_FOR (300ull * 1000 * 1000)

/* A SYN of a peer with the option. */
struct syn {
	__u32 seq;
	__u32 plain;	/* it was answered without the option, and stays so */
	struct header h;
};

/* A peer at one of its ports, as one user of this host knows it: what the connections of a user have shown holds for that user alone. */
struct peer {
	__u32 uid;
	__u8 addr[16];
	__be16 port;
	__u16 unused;
};

/* How long nothing is announced where options are copied, in nanoseconds. */
#define COPIED_FOR (60ull * 1000 * 1000 * 1000)

/* Why the connections of the sockets of an attached cgroup are TCP: peer diagnosis codes (RFC 7609, appendix A.3), and those of package smc. */
#define REFUSED 0	/* the peer reset it before it existed */
#define NO_MEMORY 0x01010000
#define NO_OPTION 0x03010000
#define COPIED 0x03fb0000
#define UNFIT_SOCKET 0x03060000	/* options of TCP that SMC does not go with */
#define SHORT 0x03fe0000
#define MUTE 0x03f90000
struct tally {
	__u64 cgroup;
	__u32 why;
	__u32 server;	/* the side of this host */
};

/* Why the connection of a socket is TCP, and whose it is. */
struct plain {
	__u64 cookie;
	__u64 cgroup;
	__u32 uid;
	__u32 why;
	__u32 code;	/* as in silence */
	__u32 unused;
};

/*
 * Whose a listening socket is that was made in another cgroup, and that programs were started with: those of cgroups
 * that are attached no more do not count.
 */
#define OWNERS 4
struct owner {
	__u64 cgroup;	/* of the program; 0: none */
	__u32 uid;
	__u32 unused;
};
struct owners {
	struct owner of[OWNERS];	/* the latest one first */
};

/* What is charged to a user: flows, and those of clients and of servers that are only announced. */
struct count {
	__u64 all;
	__u64 waits[2];
};

/* Users whose flows are charged to another one. */
struct ids {
	__u32 bits;	/* of what follows */
	__be32 uid;
};

/* Where SMC-R is possible: a device, or 0 for any, and addresses of peers by it. IPv4 addresses are IPv4-mapped. */
struct place {
	__u32 bits;	/* of what follows */
	__u32 dev;
	__u8 addr[16];
};

/* A bit of what map places says, beside the reason: who has these addresses is a neighbour. */
#define NEIGHBOUR 0x80000000

/* Until when nothing is announced, as bpf_ktime_get_ns has it, and why. With again, the first connection after that is announced, and the others are not for so long. */
struct silence {
	__u64 until;
	__u64 again;
	__u32 why;
	__u32 code;	/* the reason of the peer, if that has declined, or 0: it is shown, and nothing is counted by it, as the peer chooses it */
};
struct known {
	struct peer peer;
	struct silence is;
};

struct flow_table { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct tuple); __type(value, struct flow); };
struct flow_table flows SEC(".maps");
#define STACKS 16
struct { __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); __uint(max_entries, STACKS); __type(key, __u32); __array(values, struct flow_table); } earlier SEC(".maps"); /* flows of the stacks before this one; user space writes it */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct tuple); __type(value, struct way); } ways SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 16384); __type(key, struct tuple); __type(value, struct syn); } syns SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 4096); __type(key, struct tuple); __type(value, struct flow); } renewed SEC(".maps"); /* connections of clients whose SYN waits for the end of another one with the same addresses and ports: they are announced when the stack lets the SYN go */
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 4096); __type(key, struct tuple); __type(value, __u32); } given_up SEC(".maps"); /* the next sequence number of the peer in connections of clients that the stack has given up: see late. User space writes it */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4096); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, __u64); __type(value, __u32); } cgroups SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, __u32); __type(value, struct count); } users SEC(".maps"); /* what was ever charged to a user; of these, what programs forgot is taken off. User space deletes those of users who have nothing */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, __u32); __type(value, struct count); } removed SEC(".maps"); /* what user space has removed of it */
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u64); } total SEC(".maps"); /* what was charged to all, likewise; user space has the rest in states */
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct ids); __type(value, __u32); } accounts SEC(".maps"); /* who answers for subordinate users; user space writes it */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct tally); __type(value, __u64); } tallies SEC(".maps"); /* how often; user space deletes those of cgroups that are not attached any more */

struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 65536); __type(key, struct seat); __type(value, struct plain); } plains SEC(".maps"); /* why the connection of a socket is TCP: for listings */
struct { __uint(type, BPF_MAP_TYPE_SK_STORAGE); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, int); __type(value, struct owners); } listeners SEC(".maps"); /* it is memory of the socket, and ends with it; user space writes it, and the next stack goes on with the same map */

/* What options finds. It is in memory, so that the verifier does not follow each value that it can have. */
struct found {
	__u32 at;	/* offset of the next option */
	__u32 has;
	__u32 where;	/* offset of the option of SMC */
	__u32 stamps, sack;	/* offsets of timestamps and of selective acknowledgements, or 0 */
};

struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 32768); __type(key, struct seat); __type(value, struct known); } quiet SEC(".maps"); /* both sides write it */
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, 16384); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct place); __type(value, __u32); } places SEC(".maps"); /* why SMC-R is not possible there, or 0, and NEIGHBOUR; user space writes it */
/* Until when the stack counts as alive, as bpf_ktime_get_ns has it, which it writes again and again; whether it takes new connections; and how many flows it has removed. */
enum { ALIVE, TAKES, REMOVED, STATES };
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, STATES); __type(key, __u32); __type(value, __u64); } states SEC(".maps");

/* The device of held packets: the kernel removes it, and this entry, when the process that has it ends. */
struct { __uint(type, BPF_MAP_TYPE_DEVMAP); __uint(max_entries, 1); __uint(key_size, 4); __uint(value_size, 4); } holder SEC(".maps");

/* is_split reports whether the packets of a program go to inner. */
static __always_inline int is_split(const struct way *w)
{
	return w->state == SPLIT || w->state == FROZEN;
}
