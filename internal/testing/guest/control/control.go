// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// PortName is the name of the virtio-serial port that carries the frames.
const PortName = "smcr.agent"

const (
	// headerSize is length (4 bytes), command (4 bytes), type (1 byte), all
	// big endian. The length counts the data alone.
	headerSize = 9

	// MaxData is the greatest length of a frame's data in bytes.
	MaxData = 1 << 20
)

// ErrFrame is matched by errors about frames that no peer of ours sends.
var ErrFrame = errors.New("control: malformed frame")

// A Type says what a frame means.
type Type uint8

// The frames. Those with a command's number belong to that command.
const (
	// TypeHello is the agent's first frame, command 0; data: [Hello] in JSON.
	TypeHello Type = iota + 1
	// TypeStart asks the agent for a command; data: [Start] in JSON.
	TypeStart
	// TypeSignal asks the agent to signal the command's process group; data:
	// the number of the signal, one byte.
	TypeSignal
	// TypeStdout is what the command wrote to its standard output.
	TypeStdout
	// TypeStderr is what the command wrote to its standard error.
	TypeStderr
	// TypeExit ends a command, nothing follows of it; data: [Exit] in JSON.
	TypeExit

	typeEnd
)

// Hello says that the guest is ready.
type Hello struct {
	Kernel string  `json:"kernel"` // release, as uname -r says
	Uptime float64 `json:"uptime"` // seconds since the kernel began
}

// Start is a command to run.
type Start struct {
	Argv  []string `json:"argv"`
	Env   []string `json:"env,omitempty"` // added to the agent's own
	Dir   string   `json:"dir,omitempty"` // "" is /
	Stdin []byte   `json:"stdin,omitempty"`

	// Terminal connects the command to the guest's terminal, with the size
	// in characters, rather than to frames.
	Terminal bool   `json:"terminal,omitempty"`
	Columns  uint16 `json:"columns,omitempty"`
	Rows     uint16 `json:"rows,omitempty"`
}

// Exit is how a command ended.
type Exit struct {
	Status int    `json:"status"`           // exit status, or -1
	Signal int    `json:"signal,omitempty"` // the signal that ended it, or 0
	Error  string `json:"error,omitempty"`  // why it could not be started
}

// A Frame is one message.
type Frame struct {
	Type    Type
	Command uint32
	Data    []byte
}

// AppendBinary appends the frame to b. Data beyond [MaxData] is an error.
func (f Frame) AppendBinary(b []byte) ([]byte, error) {
	if len(f.Data) > MaxData {
		return b, fmt.Errorf("control: %d bytes of data, more than %d", len(f.Data), MaxData)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.Data)))
	b = binary.BigEndian.AppendUint32(b, f.Command)
	b = append(b, byte(f.Type))
	return append(b, f.Data...), nil
}

// A Reader takes frames off a stream.
type Reader struct {
	r *bufio.Reader
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 64<<10)} }

// Next returns the next frame, whose data is the caller's. The error is io.EOF
// at the end of the stream, io.ErrUnexpectedEOF within a frame, or matches
// [ErrFrame].
func (r *Reader) Next() (Frame, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r.r, h[:]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(h[:])
	f := Frame{Command: binary.BigEndian.Uint32(h[4:]), Type: Type(h[8])}
	if n > MaxData {
		return Frame{}, fmt.Errorf("%w: %d bytes of data", ErrFrame, n)
	}
	if f.Type == 0 || f.Type >= typeEnd {
		return Frame{}, fmt.Errorf("%w: type %d", ErrFrame, f.Type)
	}
	f.Data = make([]byte, n)
	if _, err := io.ReadFull(r.r, f.Data); err != nil {
		return Frame{}, noEOF(err)
	}
	return f, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
