// The video file of a job, with sound, whole or not at all.
//   mp4: H.264 and AAC through the ffmpeg program. Pixels become 4:2:0 here (io/yuv.h) and run
//   through a
//        pipe; sound is added in a second pass that copies the video, since it may be ready later.
//        Settings as in the LTX-2 reference: libx264 "veryfast", crf 19, BT.709 limited range;
//        other than there all colour tags are set, the rate is the exact fraction, and the index
//        stands in front.
//   y4m: uncompressed 4:2:0 with a WAV file beside it, without any other program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "io/audio_track.h"
#include "io/frame_sink.h"

namespace flotilla::io {

enum class Container { mp4, y4m };

// The container that the extension of `path` names. Errors (ErrorKind::config): another extension
// (the message lists what can be written). ErrorKind::machine: .mp4 without an ffmpeg that has
// libx264 and aac.
Container choose_container(const std::filesystem::path& path, bool ffmpeg_found);

// Where the sound of a .y4m goes: the same name with .wav.
std::filesystem::path sound_path(const std::filesystem::path& video_path);

struct VideoWriterOptions {
  std::filesystem::path path;
  std::filesystem::path ffmpeg;  // for mp4
  VideoFormat format;            // even sides
  bool overwrite = false;
  bool audio = true;    // false: no sound stream
  std::string comment;  // for mp4: metadata field "comment", e.g. the resolved job; may be empty
  int crf = 19;         // libx264: lower is better, 0..51
  std::string preset = "veryfast";
  int threads = 0;  // of the encoder; 0: its own choice
};

class VideoWriter : public FrameSink {
 public:
  // Once, before finish(), exactly when VideoWriterOptions::audio is set; cut or filled to the
  // video's duration. May be called while another thread pushes frames.
  virtual void set_audio(AudioTrack track) = 0;
};

// Creates the temporary files (and starts the encoder), so a bad place is found here. finish()
// closes them, reads an mp4's index back (size, frames, rate, colour, duration of the sound) and
// renames. The thread that calls this must outlive the writer. Errors: ErrorKind::output;
// ErrorKind::config for sizes and rates that cannot be written; ErrorKind::machine when ffmpeg
// cannot start.
std::unique_ptr<VideoWriter> make_video_writer(const VideoWriterOptions& options);

}  // namespace flotilla::io
