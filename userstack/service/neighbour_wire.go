// SPDX-License-Identifier: Apache-2.0

package service

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
	"smcr/userstack/broker"
	"smcr/userstack/internal/bounded"
)

// neighbourVersion is the version of the messages between the stacks of a machine. A stack
// answers no to a message of another version, so the connection uses RoCE. In every version,
// a message begins with "SMCL" and the version.
const neighbourVersion = 1

// neighbourOp is the type of a request to another stack of the machine.
type neighbourOp uint8

const (
	// opOwns asks whether the address of server belongs to the other stack's network
	// namespace, and whether that stack makes local connections.
	opOwns neighbourOp = iota + 1
	// opOffer passes both ends of a pair for a connection, the client's end first. The
	// conversation continues if the answer is yes.
	opOffer
	// opBroken lets the launcher at the other side prepare a reset
	// (broker.Conn.Broken). opDropUrgent does the same for urgent data.
	opBroken
	opDropUrgent
	opEnd
)

// Words of a conversation, one byte each. The client's side sends the result of its
// localConn, and may ask to withdraw it.
const (
	wordNo        = 'n'
	wordYes       = 'y'
	wordLocal     = 'l' // outcomeLocal
	wordTCP       = 't' // outcomeTCP
	wordWithdraw  = 'w' // answered by wordWithdrawn or wordTaken
	wordTaken     = 'a' // the program that accepts has its end
	wordWithdrawn = 'd'
)

// neighbourMessage is a request to another stack of the machine.
//
//	offset size
//	     0    4  "SMCL"
//	     4    1  version
//	     5    1  op
//	     6    2  reserved
//	     8   32  machine
//	    40    8  cookie of the sender's network namespace
//	    48    4  user of the launcher of the client
//	    52    4  next sequence number that the client sends, opOffer
//	    56    4  next sequence number that it receives, opOffer
//	    60   20  client
//	    80   20  server
//
// An address is 1 byte family (0 none, 4, 6), 1 reserved, 2 port, 16 address. All
// integers are little endian.
type neighbourMessage struct {
	op      neighbourOp
	machine [32]byte
	netns   uint64
	uid     uint32
	seqs    tcpSeqs
	name    tuple
}

// tcpSeqs are the sequence numbers of the first bytes that one end of a TCP connection
// sends and receives. For a new connection, only the two hosts and those on the path
// between them know these numbers.
type tcpSeqs struct{ send, recv uint32 }

const neighbourLen = 100

var (
	errNeighbour = errors.New("service: malformed message of another stack")
	// errNeighbourVersion means that smcr was upgraded while one of the stacks ran.
	errNeighbourVersion = errors.New("service: another stack of this machine is of a different release of smcr")
)

func (m *neighbourMessage) encode() []byte {
	b := make([]byte, neighbourLen)
	copy(b, "SMCL")
	b[4], b[5] = neighbourVersion, byte(m.op)
	copy(b[8:40], m.machine[:])
	le := binary.LittleEndian
	le.PutUint64(b[40:], m.netns)
	le.PutUint32(b[48:], m.uid)
	le.PutUint32(b[52:], m.seqs.send)
	le.PutUint32(b[56:], m.seqs.recv)
	putAddr(b[60:80], m.name.client)
	putAddr(b[80:100], m.name.server)
	return b
}

func decodeNeighbour(b []byte) (m neighbourMessage, err error) {
	if len(b) > 4 && string(b[:4]) == "SMCL" && b[4] != neighbourVersion {
		return m, fmt.Errorf("%w (version %d of the messages between stacks, here %d)", errNeighbourVersion, b[4], neighbourVersion)
	}
	if len(b) != neighbourLen || string(b[:4]) != "SMCL" {
		return m, fmt.Errorf("%w: %d bytes", errNeighbour, len(b))
	}
	le := binary.LittleEndian
	m.op = neighbourOp(b[5])
	if m.op == 0 || m.op >= opEnd {
		return m, fmt.Errorf("%w: op %d", errNeighbour, m.op)
	}
	copy(m.machine[:], b[8:40])
	m.netns, m.uid = le.Uint64(b[40:]), le.Uint32(b[48:])
	m.seqs = tcpSeqs{le.Uint32(b[52:]), le.Uint32(b[56:])}
	if m.name.client, err = getAddr(b[60:80]); err == nil {
		m.name.server, err = getAddr(b[80:100])
	}
	return m, err
}

func putAddr(b []byte, ap netip.AddrPort) {
	a := ap.Addr()
	switch {
	case !a.IsValid():
		return
	case a.Is4():
		b[0] = 4
	default:
		b[0] = 6
	}
	binary.LittleEndian.PutUint16(b[2:], ap.Port())
	copy(b[4:], a.AsSlice())
}

func getAddr(b []byte) (netip.AddrPort, error) {
	var a netip.Addr
	switch b[0] {
	case 0:
		return netip.AddrPort{}, nil
	case 4:
		a = netip.AddrFrom4([4]byte(b[4:8]))
	case 6:
		a = netip.AddrFrom16([16]byte(b[4:20])).Unmap()
	default:
		return netip.AddrPort{}, fmt.Errorf("%w: address family %d", errNeighbour, b[0])
	}
	return netip.AddrPortFrom(a, binary.LittleEndian.Uint16(b[2:])), nil
}

// HostIDVariable names the environment variable by which tests have several hosts on
// one machine: stacks are on one machine if they have the same value, or none.
const HostIDVariable = "SMCR_HOST_ID"

// machineID returns an identifier of the machine that changes with each boot.
func machineID() (id [32]byte, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id, fmt.Errorf("service: %w", err)
	}
	return sha256.Sum256(append(boot, os.Getenv(HostIDVariable)...)), nil
}

// sequences reads the sequence numbers of a connection, which needs CAP_NET_ADMIN. It
// restores the program's SO_REUSEADDR, which this changes.
func sequences(fd int) (s tcpSeqs, err error) {
	const (
		recvQueue, sendQueue = 1, 2
		offWithoutProbe      = -1
	)
	reuse, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR)
	if err != nil {
		return s, err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1); err != nil {
		return s, fmt.Errorf("service: TCP_REPAIR: %w", err)
	}
	for queue, seq := range map[int]*uint32{recvQueue: &s.recv, sendQueue: &s.send} {
		var v int
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, queue)
		}
		if err == nil {
			v, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
		}
		*seq = uint32(v)
	}
	err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, offWithoutProbe))
	info, ierr := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if ierr == nil { // data may have arrived meanwhile
		s.recv -= uint32(info.Bytes_received)
	}
	err = errors.Join(err, ierr)
	return s, errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, reuse))
}

const (
	// neighbourTime bounds the wait for the answer of another stack.
	neighbourTime = time.Second
	// launcherTime is added if that stack waits for the answer of a launcher: see
	// broker.Conn.Broken and broker.Conn.DropUrgent.
	launcherTime = 3 * time.Second
)

// answerTime returns how long to wait for the answer of another stack.
func (op neighbourOp) answerTime() time.Duration {
	if op == opBroken || op == opDropUrgent {
		return neighbourTime + launcherTime
	}
	return neighbourTime
}

// sendNeighbour sends a message, with descriptors if there are any.
func sendNeighbour(u *net.UnixConn, m *neighbourMessage, ends ...*broker.Descriptor) error {
	var fds []int
	for _, d := range ends {
		fd, err := d.Dup()
		if err != nil {
			return err
		}
		defer bounded.Close(fd) //nolint:errcheck // a duplicate
		fds = append(fds, fd)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if err := u.SetWriteDeadline(time.Now().Add(neighbourTime)); err != nil {
		return err
	}
	b := m.encode()
	return retry.While(retry.NoMemory, neighbourTime, func() error {
		_, _, err := u.WriteMsgUnix(b, oob, nil)
		return err
	})
}

// receiveNeighbour receives a message and the descriptors that came with it. The
// caller must close the descriptors, also after an error.
func receiveNeighbour(u *net.UnixConn) (m neighbourMessage, ends []*broker.Descriptor, err error) {
	var b [neighbourLen + 1]byte
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, flags, _, err := u.ReadMsgUnix(b[:], oob)
	if err != nil {
		return m, nil, err
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range cmsgs {
		if fds, rerr := unix.ParseUnixRights(&cmsgs[i]); rerr == nil {
			for _, fd := range fds {
				unix.CloseOnExec(fd)
				ends = append(ends, broker.NewDescriptor(fd))
			}
		}
	}
	m, derr := decodeNeighbour(b[:n])
	if !errors.Is(derr, errNeighbourVersion) && (err != nil || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0) {
		return neighbourMessage{}, ends, fmt.Errorf("%w: truncated", errNeighbour)
	}
	return m, ends, derr
}

// sendWord sends a word.
func sendWord(u *net.UnixConn, word byte) error {
	if err := u.SetWriteDeadline(time.Now().Add(neighbourTime)); err != nil {
		return err
	}
	return retry.While(retry.NoMemory, neighbourTime, func() error {
		_, err := u.Write([]byte{word})
		return err
	})
}

// receiveWord waits for a word, for at most limit. A limit of 0 means no limit.
func receiveWord(u *net.UnixConn, limit time.Duration) (byte, error) {
	at := time.Time{}
	if limit > 0 {
		at = time.Now().Add(limit)
	}
	if err := u.SetReadDeadline(at); err != nil {
		return 0, err
	}
	var b [2]byte
	n, err := u.Read(b[:])
	if err == nil && n != 1 {
		err = errNeighbour
	}
	return b[0], err
}
