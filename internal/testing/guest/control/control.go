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
	// headerSize is the size of length (4 bytes), command (4 bytes) and type (1 byte),
	// all big endian. The length is that of the data only.
	headerSize = 9

	// MaxData is the greatest length of a frame's data in bytes.
	MaxData = 1 << 20
)

// ErrFrame means that a frame is malformed.
var ErrFrame = errors.New("control: malformed frame")

// A Type is the kind of a frame.
type Type uint8

// The kinds of frames. A frame with the number of a command belongs to that command.
const (
	// TypeHello is the first frame of the agent, with command 0. Data: [Hello] in JSON.
	TypeHello Type = iota + 1
	// TypeStart makes the agent start a command. Data: [Start] in JSON.
	TypeStart
	// TypeSignal makes the agent send a signal to the process group of the command. Data:
	// the number of the signal, one byte.
	TypeSignal
	// TypeStdout has standard output of the command.
	TypeStdout
	// TypeStderr has standard error of the command.
	TypeStderr
	// TypeExit is the last frame of a command. Data: [Exit] in JSON.
	TypeExit

	typeEnd
)

// Hello reports that the guest is ready.
type Hello struct {
	Kernel string  `json:"kernel"` // release, as in uname -r
	Uptime float64 `json:"uptime"` // seconds since the boot
}

// Start is a command to run.
type Start struct {
	Argv  []string `json:"argv"`
	Env   []string `json:"env,omitempty"` // added to the environment of the agent
	Dir   string   `json:"dir,omitempty"` // "" is /
	Stdin []byte   `json:"stdin,omitempty"`

	// Terminal connects the command to the terminal of the guest, whose size is given in
	// characters, instead of sending its output in frames.
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

// AppendBinary appends the frame to b. More than [MaxData] bytes of data are an error.
func (f Frame) AppendBinary(b []byte) ([]byte, error) {
	if len(f.Data) > MaxData {
		return b, fmt.Errorf("control: %d bytes of data, more than %d", len(f.Data), MaxData)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.Data)))
	b = binary.BigEndian.AppendUint32(b, f.Command)
	b = append(b, byte(f.Type))
	return append(b, f.Data...), nil
}

// A Reader reads frames from a stream.
type Reader struct {
	r *bufio.Reader
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 64<<10)} }

// Next returns the next frame. Its data belongs to the caller. The error is io.EOF at the
// end of the stream and io.ErrUnexpectedEOF within a frame; otherwise it may match
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
